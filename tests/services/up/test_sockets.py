"""The listening socket: refusals in words, and an address people can use."""

import socket

import pytest

from headrace.shared.errors import ConfigError
from headrace.up.front_door import reachable
from headrace.up.sockets import base_url, is_loopback, listening


def test_it_listens_where_it_says():
    with listening("127.0.0.1", 0, insecure_dev=False) as listener:
        port = listener.getsockname()[1]

        assert base_url(listener) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_a_taken_port_is_named():
    with listening("127.0.0.1", 0, insecure_dev=False) as listener:
        port = listener.getsockname()[1]

        with (
            pytest.raises(ConfigError, match=rf"^port {port} on 127\.0\.0\.1 is in use$"),
            listening("127.0.0.1", port, insecure_dev=False),
        ):
            pass


def test_the_port_is_free_again_at_once():
    with listening("127.0.0.1", 0, insecure_dev=False) as listener:
        address = listener.getsockname()
        client = socket.create_connection(address, timeout=5)
        accepted = _accept(listener)
        accepted.close()
        client.close()

    with listening(*address, insecure_dev=False) as again:
        assert again.getsockname() == address


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_strangers_are_kept_out_unless_asked_in(host):
    with pytest.raises(ConfigError, match="--insecure-dev"), listening(host, 0, insecure_dev=False):
        pass


def test_all_addresses_can_be_asked_for():
    with listening("0.0.0.0", 0, insecure_dev=True) as listener:
        assert reachable(listener) == ("127.0.0.1", listener.getsockname()[1])


def test_an_address_of_another_machine_is_refused_in_words():
    with (
        pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"),
        listening("192.0.2.1", 0, insecure_dev=True),
    ):
        pass


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("localhost.example", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback_is_told_from_the_world(host, expected):
    assert is_loopback(host) is expected


def _accept(listener: socket.socket) -> socket.socket:
    listener.settimeout(5)
    return listener.accept()[0]
