"""ps, scale, drain and chat against an instance in miniature."""

import json
import subprocess
import sys

import pytest

from headrace.cli.api import Api, ApiError
from headrace.cli.chat import texts
from headrace.cli.ps import plain_table
from headrace.cli.workers import COLUMNS, wait_until, workers

READY = {
    "stage": "decode",
    "wid": "decode-1",
    "pid": 7,
    "state": "ready",
    "queue": 0,
    "active": 2,
    "model": "scripted",
    "revision": None,
    "metrics": "http://127.0.0.1:1/metrics",
}


def _chunk(**delta: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


def test_ps_prints_all_keys_as_json(headrace, instance):
    instance.worker_lists = [[{**READY, "extra": 1}]]
    result = headrace("ps", "--json", "--url", instance.url)

    assert result.returncode == 0
    assert json.loads(result.stdout) == [READY]


def test_the_instance_may_come_from_the_environment(headrace, instance):
    instance.worker_lists = [[READY]]
    result = headrace("ps", HEADRACE_URL=instance.url)

    assert result.stdout == plain_table([READY]) + "\n"


def test_the_table_is_aligned():
    lines = plain_table([READY, {**READY, "stage": "ingress"}]).splitlines()

    assert lines[0].split() == [column.upper() for column in COLUMNS]
    assert lines[1].index("decode-1") == lines[2].index("decode-1") == lines[0].index("WID")


@pytest.mark.parametrize("verb", [("ps",), ("scale", "decode=1"), ("drain", "decode-1"), ("chat", "hi")])
def test_an_instance_that_is_away_exits_1_with_one_line(headrace, verb):
    result = headrace(*verb, "--url", "http://127.0.0.1:1")

    assert result.returncode == 1
    assert result.stderr == "headrace: no answer from http://127.0.0.1:1: Connection refused\n"


def test_scale_waits_for_the_registry(headrace, instance):
    instance.answers["/headrace/scale"] = {"status": "ok"}
    starting = {**READY, "wid": "decode-2", "state": "starting"}
    instance.worker_lists = [[READY], [READY, starting], [READY, {**starting, "state": "ready"}]]
    result = headrace("scale", "decode=2", "prefill=0", "--url", instance.url)

    assert result.returncode == 0
    assert instance.posted == [("/headrace/scale", {"stages": {"decode": 2, "prefill": 0}})]
    assert len(instance.worker_lists) == 1


def test_a_refused_order_exits_1_with_the_reason(headrace, instance):
    instance.errors["/headrace/scale"] = (409, {"error": {"message": "ingress=0: the last ingress stays"}})
    result = headrace("scale", "ingress=0", "--url", instance.url)

    assert (result.returncode, result.stderr) == (1, "headrace: ingress=0: the last ingress stays\n")


def test_drain_waits_until_the_worker_is_gone(headrace, instance):
    instance.answers["/headrace/drain"] = {"status": "ok"}
    instance.worker_lists = [[READY], [{**READY, "state": "draining"}], []]
    result = headrace("drain", "decode-1", "--url", instance.url)

    assert result.returncode == 0
    assert instance.posted == [("/headrace/drain", {"wid": "decode-1"})]
    assert len(instance.worker_lists) == 1


def test_a_wait_ends(instance):
    instance.worker_lists = [[READY]]

    assert wait_until(Api(instance.url), lambda _: False, limit_s=0) is False


def test_a_failed_look_is_repeated(instance):
    instance.worker_lists = [[READY]]
    looks = iter([ApiError("no answer"), None])

    def is_done(_listed: list[dict[str, object]]) -> bool:
        failure = next(looks)
        if failure is not None:
            raise failure
        return True

    assert wait_until(Api(instance.url), is_done, every_s=0.001) is True


def test_a_look_that_fails_to_the_end_is_an_error(instance):
    instance.errors["/headrace/workers"] = (503, {})

    with pytest.raises(ApiError, match="503"):
        wait_until(Api(instance.url), lambda _: True, limit_s=0)


def test_chat_streams_the_answer_of_the_first_model(headrace, instance):
    instance.answers["/v1/models"] = {"data": [{"id": "first"}, {"id": "second"}]}
    stream = b": ping\n\n" + _chunk(role="assistant") + _chunk(content="Grüß ") + _chunk(content="Gott")
    instance.answers["/v1/chat/completions"] = stream + b"data: [DONE]\n\n"
    result = headrace("chat", "hello", "--url", instance.url, PYTHONIOENCODING="utf-8")

    assert (result.returncode, result.stdout) == (0, "Grüß Gott\n")
    path, body = instance.posted[0]
    assert path == "/v1/chat/completions"
    assert body == {"model": "first", "messages": [{"role": "user", "content": "hello"}], "stream": True}


def test_chat_fails_with_the_servers_words(headrace, instance):
    instance.answers["/v1/models"] = {"data": [{"id": "first"}]}
    instance.errors["/v1/chat/completions"] = (503, {"error": {"message": "too many requests wait"}})
    result = headrace("chat", "hello", "--url", instance.url)

    assert (result.returncode, result.stderr) == (1, "headrace: too many requests wait\n")


def test_chat_ends_quietly_when_nobody_reads(instance):
    instance.answers["/v1/models"] = {"data": [{"id": "first"}]}
    instance.answers["/v1/chat/completions"] = _chunk(content="x" * 100) * 2000 + b"data: [DONE]\n\n"
    command = [sys.executable, "-P", "-m", "headrace", "chat", "hello", "--url", instance.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
        assert chat.stdout is not None
        assert chat.stderr is not None
        chat.stdout.read(10)
        chat.stdout.close()
        errors = chat.stderr.read()

    assert (chat.returncode, errors) == (1, b"")


def test_chat_fails_without_a_model(headrace, instance):
    instance.answers["/v1/models"] = {"data": []}
    result = headrace("chat", "hello", "--url", instance.url)

    assert (result.returncode, result.stderr) == (1, "headrace: no model is served at the moment\n")


def test_an_error_inside_a_stream_is_an_error():
    with pytest.raises(ApiError, match="worker crashed"):
        list(texts([_chunk(content="a"), b'data: {"error": {"message": "worker crashed"}}\n']))


def test_a_stream_that_breaks_off_is_an_error():
    with pytest.raises(ApiError, match="broke off"):
        list(texts([_chunk(content="a")]))


def test_an_answer_of_something_else_is_told(instance):
    instance.answers["/headrace/workers"] = b"<html>"

    with pytest.raises(ApiError, match="is this a headrace instance"):
        workers(Api(instance.url))


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://host", "http://", "http://host:port"])
def test_a_url_of_no_kind_is_refused(url):
    with pytest.raises(ApiError, match="is not an http"):
        Api(url)
