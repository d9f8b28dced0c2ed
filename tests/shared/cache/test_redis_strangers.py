"""The shared store against what is no store: strangers on the port, nobody there, URLs that cannot be used."""

import socket
import threading
from collections.abc import Callable

import pytest

from headrace.shared.cache.redis import open_store
from headrace.shared.config import Cache
from headrace.shared.errors import ConfigError

BUDGET_S = 0.25
SLACK_S = 0.25
"""What a busy machine may add."""


@pytest.fixture
def serve_tcp():
    """A TCP server that treats each connection as the test says; returns its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def start(treat: Callable[[socket.socket], None]) -> str:
        def accept() -> None:
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    treat(connection)
            except OSError:
                pass  # the client hung up, as it should

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        threads.append(thread)
        return f"redis://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    listener.close()
    for thread in threads:
        thread.join(10)


def test_dripping_server_cannot_hold_a_caller(serve_tcp, open_at, make_keys, meter, timed):
    """Every single read is quick; only a deadline over all of them ends the call."""
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"*1\r\n$100000\r\n")
        while not stop.wait(0.02):
            connection.sendall(b"x")

    store = open_at(serve_tcp(drip))
    result, seconds = timed(lambda: store.get(make_keys(1)))
    stop.set()

    assert result == [None]
    assert seconds < BUDGET_S + SLACK_S
    assert meter.cuts == ["timeout"]


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"*x\r\n", b"$x\r\n", b"+OK\r\n", b"*1\r\n$-1\r\n", b""]
)
def test_server_of_another_kind_is_a_miss(serve_tcp, open_at, make_keys, answer, timed):
    store = open_at(serve_tcp(lambda connection: connection.sendall(answer)))

    result, seconds = timed(lambda: store.get(make_keys(2)))

    assert result == [None, None]
    assert seconds < BUDGET_S + SLACK_S
    assert not store.is_healthy()


def test_nobody_listening_is_a_miss_at_once(open_at, make_keys, tmp_path, timed):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    for url in (f"redis://127.0.0.1:{port}", f"unix://{tmp_path}/nobody"):
        result, seconds = timed(lambda url=url: open_at(url).get(make_keys(1)))
        assert result == [None]
        assert seconds < BUDGET_S


@pytest.mark.parametrize("url", ["", "off"])
def test_no_store_without_a_url(url):
    assert open_store(Cache(url=url)) is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://x", "expected redis://"),
        ("localhost:6379", "expected redis://"),
        ("redis://h:99999", "expected redis://"),
        ("rediss://h:1", "TLS"),
        ("redis://h?socket_timeout=5", "'socket_timeout' is not supported"),
    ],
)
def test_url_that_cannot_be_honoured_is_refused(url, reason):
    with pytest.raises(ConfigError, match=rf"^cache\.url: .*{reason}"):
        open_store(Cache(url=url))
