"""Logs are one JSON object a line and never hold what users write or the keys they send."""

import asyncio
import contextvars
import io
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import structlog

from headrace.shared.config import Log
from headrace.shared.errors import BusError, Code, ConfigError, RequestError
from headrace.shared.messages import Text
from headrace.shared.telemetry import log as logs

SECRET = "ZEBRA-4711"


class Capture:
    """What went to stderr since setup."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def only(self) -> dict:
        (line,) = self.lines
        return line


@pytest.fixture
def captured(monkeypatch):
    """Set logging up for a decode worker, with stderr caught; everything global is put back afterwards."""
    handlers, level = logging.root.handlers, logging.root.level
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.setup(Log(level="info"), "decode", "decode-1")
    yield Capture(stream)
    logging.root.handlers, logging.root.level = handlers, level
    structlog.reset_defaults()


def test_record_carries_event_level_time_and_origin(captured):
    structlog.get_logger().info("block_stored", request="r1", num_blocks=3)

    record = captured.only
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "block_stored", "level": "info", "stage": "decode", "wid": "decode-1",
        "request": "r1", "num_blocks": 3,
    }  # fmt: skip


def test_bound_request_is_on_every_record(captured):
    def work() -> None:
        with structlog.contextvars.bound_contextvars(request="r7"):
            structlog.get_logger().info("step")

    contextvars.copy_context().run(work)

    assert captured.only["request"] == "r7"


def test_level_filters(captured):
    structlog.get_logger().debug("invisible")

    assert captured.lines == []


@pytest.mark.parametrize(
    "field",
    ["authorization", "x-api-key", "X_Api_Key", "cookie", "prompt", "messages", "content", "text", "ids", "tokens",
     "api_key", "prompt_ids", "Set-Cookie"],
)  # fmt: skip
def test_private_field_never_shows_at_any_depth(captured, field):
    nested = {"outer": [{"deep": {field: SECRET}}, ({field: [SECRET]},)], field: {"x": SECRET}}

    structlog.get_logger().warning("refused", **{field: SECRET}, detail=nested)

    assert SECRET not in captured.text
    assert captured.only["detail"] == {"outer": [{"deep": {}}, [{}]]}


def test_objects_are_shown_by_type_only(captured):
    item = Text(text=SECRET)

    structlog.get_logger().info(
        "got", item=item, raw=SECRET.encode(), batch=[item], where=Path("/x"), code=Code.INTERNAL
    )

    assert SECRET not in captured.text
    record = captured.only
    assert (record["item"], record["raw"], record["batch"]) == ("<Text>", "<bytes>", ["<Text>"])
    assert (record["where"], record["code"]) == ("/x", "internal_error")


def test_long_and_multiline_values_stay_on_one_short_line(captured):
    structlog.get_logger().info("odd", reason="a\nb\x00\ud800" + "c" * 5000)

    assert captured.text.count("\n") == 1
    assert len(captured.text) < 1300


def test_exception_is_flat_fields_without_its_text(captured):
    def parse(prompt: str) -> None:
        raise ValueError(f"cannot parse {prompt}")

    try:
        parse(SECRET)
    except ValueError:
        structlog.get_logger().exception("parse_failed", request="r1")

    assert SECRET not in captured.text
    record = captured.only
    assert (record["event"], record["level"], record["exc_type"]) == ("parse_failed", "error", "ValueError")
    assert "telemetry/test_log.py:" in record["exc_trace"]
    assert record["exc_trace"].endswith(" parse")


def test_our_own_messages_and_the_causes_place_are_kept(captured):
    try:
        try:
            msgspec.json.decode(f'{{"text": {SECRET}}}')
        except msgspec.DecodeError as error:
            raise BusError("stream RUN refused the message") from error
    except BusError as error:
        structlog.get_logger().error("publish_failed", exc_info=error)

    assert SECRET not in captured.text
    record = captured.only
    assert record["exc_message"] == "stream RUN refused the message"
    assert record["exc_cause"].startswith("DecodeError at ")


def test_request_error_keeps_its_text_out(captured):
    structlog.get_logger().error("refused", exc_info=RequestError(Code.INVALID_REQUEST, f"bad value {SECRET!r}"))

    assert SECRET not in captured.text
    assert captured.only["exc_type"] == "RequestError"


def test_group_lists_its_members(captured):
    structlog.get_logger().error("stopped", exc_info=ExceptionGroup("both", [ValueError(SECRET), OSError(28, "full")]))

    assert SECRET not in captured.text
    assert [inner["exc_type"] for inner in captured.only["exc_group"]] == ["ValueError", "OSError"]


def test_library_records_take_the_same_path_from_warning_up(captured):
    logger = logging.getLogger("aiohttp.server")
    logger.info("quiet %s", SECRET)
    logger.warning("Error handling request from %s\n%s", SECRET, SECRET)
    logger.log(35, "odd level")

    assert SECRET not in captured.text
    warning, odd = captured.lines
    assert warning["event"] == "Error handling request from %s"
    assert (warning["logger"], warning["level"], warning["wid"]) == ("aiohttp.server", "warning", "decode-1")
    assert odd["level"] == "warning"


async def test_failed_asyncio_task_shows_its_type_only(captured):
    loop = asyncio.get_running_loop()
    failure = ValueError(SECRET)

    loop.call_exception_handler({"message": "Task exception was never retrieved", "exception": failure, "x": failure})

    assert SECRET not in captured.text
    assert captured.only["event"] == "Task exception was never retrieved"
    assert captured.only["exc_type"] == "ValueError"


def test_thread_failure_is_a_record(captured):
    def fail() -> None:
        raise ValueError(SECRET)

    args = threading.ExceptHookArgs(
        (ValueError, ValueError(SECRET), None, threading.Thread(target=fail, name="engine"))
    )
    threading.excepthook(args)

    assert SECRET not in captured.text
    assert (captured.only["event"], captured.only["thread"]) == ("uncaught_exception", "engine")


UNCAUGHT = """
import sys
from headrace.shared.config import Log
from headrace.shared.telemetry import log
log.setup(Log(dir=sys.argv[1]), "decode", "decode-9")

class Loud:
    def __del__(self):
        raise ValueError(sys.argv[2])

loud = Loud()
del loud
def handle(prompt):
    raise ValueError("cannot serve " + prompt)
handle(sys.argv[2])
"""


def test_uncaught_exception_of_a_process_shows_no_prompt(tmp_path):
    command = [sys.executable, "-c", UNCAUGHT, str(tmp_path / "logs"), SECRET]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)

    written = (tmp_path / "logs" / "decode-9.log").read_text()
    assert done.returncode == 1
    assert done.stderr == written
    assert SECRET not in done.stderr + done.stdout
    unraisable, uncaught = map(json.loads, written.splitlines())
    assert (unraisable["event"], uncaught["event"]) == ("unraisable_exception", "uncaught_exception")
    assert (uncaught["level"], uncaught["exc_type"]) == ("critical", "ValueError")
    assert uncaught["exc_trace"].endswith("handle")


def test_unusable_log_directory_is_a_configuration_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"log\.dir"):
        logs.setup(Log(dir=str(tmp_path / "file" / "logs")), "decode", "decode-1")


class Gone(io.StringIO):
    """A pipe whose reader has died."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_logging_survives_a_broken_stream(captured, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", Gone())
    logs.setup(Log(dir=str(tmp_path)), "decode", "decode-2")

    structlog.get_logger().info("file_still_written")

    assert "file_still_written" in (tmp_path / "decode-2.log").read_text()
