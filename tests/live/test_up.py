"""`headrace up` as a whole, on the scripted model over the real servers."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

STAGES = {"ingress", "tokenize", "router", "prefill", "decode"}


def client(instance: Any, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=instance.url + "/v1", api_key="any", max_retries=0, timeout=60, **options)


def script(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"x_script": {"choices": [list(steps)]}}


def slow_words(num: int, pause_ms: int = 100) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for n in range(num):
        steps += [{"text": f"w{n} "}, {"pause_ms": pause_ms}]
    return script(*steps, {"eos": True})


def words(num: int) -> str:
    return "".join(f"w{n} " for n in range(num))


def test_five_stages_and_two_servers_run_as_processes_of_their_own(scripted: Any) -> None:
    rows = json.loads(scripted.headrace("ps", "--json").stdout)

    assert {row["stage"] for row in rows} == STAGES | {"nats", "valkey"}
    assert len({row["pid"] for row in rows}) == len(rows)
    assert all(Path(f"/proc/{row['pid']}").exists() for row in rows)


def test_plain_and_streamed_answers_agree(scripted: Any) -> None:
    body: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    extra = script({"text": "Hé"}, {"text": "llo "}, {"ids": [0xF0, 0x9F]}, {"ids": [0x8C, 0x8A]}, {"eos": True})
    plain = client(scripted).chat.completions.create(**body, extra_body=extra)
    chunks = list(client(scripted).chat.completions.create(**body, stream=True, extra_body=extra))

    assert plain.choices[0].message.content == "Héllo 🌊"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Héllo 🌊"
    assert plain.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 7


@pytest.mark.parametrize("stage", ["decode", "router", "prefill", "tokenize"])
def test_killing_a_worker_leaves_the_stream_whole_and_the_service_answering(scripted: Any, stage: str) -> None:
    stream = client(scripted).chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": "go on " * 20}],
        stream=True,
        extra_body=slow_words(30),
    )
    text, ends = "", []
    for number, chunk in enumerate(stream):
        if number == 3:
            os.kill(scripted.workers(stage)[0]["pid"], signal.SIGKILL)
        text += chunk.choices[0].delta.content or ""
        ends += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []

    assert text == words(30)
    assert ends == ["stop"]
    again = openai.OpenAI(base_url=scripted.url + "/v1", api_key="any", max_retries=5).completions.create(
        model="scripted", prompt="x", max_tokens=3
    )
    assert again.choices[0].text == "abc"
    scripted.wait(f"a new {stage}", lambda: scripted.workers(stage))


def test_scale_adds_a_worker_that_takes_work_and_removes_it_again(scripted: Any) -> None:
    assert scripted.headrace("scale", "decode=2").returncode == 0
    first, second = scripted.workers("decode")
    with contextlib.ExitStack() as streams:
        for _ in range(8):
            stream = client(scripted).completions.create(
                model="scripted", prompt="x", max_tokens=200, stream=True, extra_body=slow_words(20)
            )
            streams.enter_context(contextlib.closing(stream))
        scripted.wait("work on both", lambda: all(row["active"] for row in scripted.workers("decode")), 10)

    assert scripted.headrace("scale", "decode=1").returncode == 0
    left = scripted.wait("one worker", lambda: len(r := scripted.workers("decode")) == 1 and r)
    assert left[0]["wid"] in {first["wid"], second["wid"]}


def test_draining_a_worker_moves_its_stream_to_another(scripted: Any) -> None:
    assert scripted.headrace("scale", "decode=2").returncode == 0
    stream = client(scripted).completions.create(
        model="scripted", prompt="x", max_tokens=200, stream=True, extra_body=slow_words(40)
    )
    text = ""
    for number, chunk in enumerate(stream):
        if number == 3:
            busy = scripted.wait("a busy worker", lambda: [r for r in scripted.workers("decode") if r["active"]])
            assert scripted.headrace("drain", busy[0]["wid"]).returncode == 0
        text += chunk.choices[0].text

    assert text == words(40)
    assert [row["wid"] for row in scripted.workers("decode")] != [busy[0]["wid"]]


def test_a_second_up_on_the_same_data_dir_is_refused_at_once(
    scripted: Any, cli: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    done = cli("up", "--port", "0", "--data-dir", str(scripted.data_dir), "--model", "scripted", timeout=12)

    assert done.returncode == 78
    assert len(done.stderr.strip().splitlines()) == 1
    assert "in use" in done.stderr


def test_a_taken_port_is_refused_at_once(
    scripted: Any, cli: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    port = scripted.url.rsplit(":", 1)[1]
    done = cli("up", "--port", port, "--data-dir", str(tmp_path), "--model", "scripted", timeout=12)

    assert done.returncode == 78
    assert len(done.stderr.strip().splitlines()) == 1
    assert port in done.stderr


def test_all_gauges_are_zero_when_nothing_runs(scripted: Any) -> None:
    client(scripted).completions.create(model="scripted", prompt="x", max_tokens=3)
    names = ("requests_active", "slots_used", "kv_blocks_used", "map_size", "subscriptions")

    def busy() -> list[str]:
        lines = []
        for row in scripted.workers():
            if row["metrics"] and row["stage"] in STAGES:
                lines += _exposition(row["metrics"])
        return [line for line in lines if line.startswith(tuple(f"headrace_{n}" for n in names)) and _value(line)]

    scripted.wait("idle gauges", lambda: not busy(), 10)


def _exposition(url: str) -> list[str]:
    import urllib.request

    with urllib.request.urlopen(url, timeout=5) as answer:
        return list(answer.read().decode().splitlines())


def _value(line: str) -> float:
    return float(line.rsplit(" ", 1)[1])


def test_sigterm_drains_and_leaves_no_process_behind(
    up: Callable[..., contextlib.AbstractContextManager[Any]], tmp_path: Path
) -> None:
    with up(tmp_path, "--model", "scripted") as instance:
        pids = [row["pid"] for row in instance.workers(state=None)]
        stream = client(instance).completions.create(
            model="scripted", prompt="x", max_tokens=200, stream=True, extra_body=slow_words(20)
        )
        text = ""
        for number, chunk in enumerate(stream):
            if number == 2:
                instance.process.send_signal(signal.SIGTERM)
            text += chunk.choices[0].text

        assert text == words(20)
        assert instance.process.wait(40) == 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_new_up_on_an_old_data_dir_finishes_accepted_requests(
    up: Callable[..., contextlib.AbstractContextManager[Any]], tmp_path: Path
) -> None:
    with up(tmp_path, "--model", "scripted") as instance:
        stream = client(instance).completions.with_raw_response.create(
            model="scripted", prompt="x", max_tokens=200, stream=True, extra_body=slow_words(40)
        )
        rid = stream.headers["x-headrace-request"]
        instance.process.kill()
        instance.process.wait(10)
    with up(tmp_path, "--model", "scripted") as instance:
        request = instance.wait("an end", lambda: _ended(instance.get(f"/headrace/requests/{rid}")))

    assert request["finish_reason"] == "stop"
    assert request["usage"]["completion_tokens"] == 41


def _ended(request: dict[str, Any]) -> dict[str, Any] | None:
    return request if request["state"] == "finished" else None
