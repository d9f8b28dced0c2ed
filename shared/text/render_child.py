"""The process a chat template runs in: `python -m headrace.shared.text.render_child`, a stream socket as its stdin.

Frames are a 4-byte little-endian length and msgpack: first a `Setup`, then `Call`s, each answered by a `Reply`. The
process bounds itself: memory by RLIMIT_AS, time by an alarm whose default action kills it, also inside a single long
operation. It ends with its parent, when the socket closes.
"""

import resource
import signal
import socket
import sys

import msgspec
from jinja2 import TemplateError

from headrace.shared.text.template import ChatTemplate, RefusedError, Renderable

_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What template code can provoke; anything else ends the process, which the caller treats alike."""


class Setup(msgspec.Struct, frozen=True):
    """The template this process is for, and its bounds."""

    template: ChatTemplate
    timeout_s: float
    max_bytes: int
    max_chars: int


class Call(msgspec.Struct, frozen=True):
    """One rendering."""

    variables: dict[str, object]


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one of the fields is set."""

    text: str | None = None
    refused: str | None = None
    """The template's own words, from `raise_exception`."""
    fault: str | None = None


def send(peer: socket.socket, message: msgspec.Struct) -> None:
    """Write one frame; raises OSError (TimeoutError by the socket's timeout)."""
    body = msgspec.msgpack.encode(message)
    peer.sendall(len(body).to_bytes(4, "little") + body)


def receive(peer: socket.socket) -> bytes:
    """Read one frame; raises EOFError when the other side is gone, OSError."""
    return _exactly(peer, int.from_bytes(_exactly(peer, 4), "little"))


def _exactly(peer: socket.socket, num: int) -> bytes:
    data = bytearray()
    while len(data) < num:
        got = peer.recv(num - len(data))
        if not got:
            raise EOFError
        data += got
    return bytes(data)


def main() -> None:
    """Serve one template until the socket closes."""
    peer = socket.socket(fileno=sys.stdin.fileno())
    setup = msgspec.msgpack.decode(receive(peer), type=Setup)
    resource.setrlimit(resource.RLIMIT_AS, (setup.max_bytes, setup.max_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    compiled: Renderable | None = None
    reply = Reply(text="")
    signal.setitimer(signal.ITIMER_REAL, setup.timeout_s)
    try:
        compiled = Renderable(setup.template, setup.max_chars)
    except _FAULTS as error:
        reply = Reply(fault=_describe(error))
    signal.setitimer(signal.ITIMER_REAL, 0)
    send(peer, reply)
    calls = msgspec.msgpack.Decoder(Call)
    while compiled is not None:
        try:
            data = receive(peer)
        except EOFError:
            return
        send(peer, _answer(compiled, calls.decode(data), setup.timeout_s))


def _answer(compiled: Renderable, call: Call, timeout_s: float) -> Reply:
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        return Reply(text=compiled.render(call.variables))
    except RefusedError as error:
        return Reply(refused=str(error))
    except _FAULTS as error:
        return Reply(fault=_describe(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:500]


if __name__ == "__main__":
    main()
