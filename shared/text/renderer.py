"""Renders one chat template in a child process that is killed and replaced when it takes too long.

The time limit covers the wait for the child as well, so that no caller waits longer than about the limit, whatever
earlier callers made the template do.
"""

import socket
import subprocess
import sys
import threading
import time

import msgspec

from headrace.shared.errors import HeadraceError
from headrace.shared.text.render_child import Call, Reply, Setup, receive, send
from headrace.shared.text.template import ChatTemplate

_START_S = 20.0
"""Longest a child may take to import its modules."""
_GRACE_S = 0.5
"""The child's own alarm comes first; this much later it is killed from here."""
_MAX_BYTES = 512 << 20
_MAX_CHARS = 8 << 20


class TemplateFaultError(HeadraceError):
    """The template did not render; the message says why."""


class TemplateRefusedError(TemplateFaultError):
    """The template refused the conversation in its own words."""


class Renderer:
    """A template that can be rendered. Thread-safe; one rendering at a time."""

    def __init__(self, template: ChatTemplate, timeout_s: float) -> None:
        """`timeout_s` bounds one rendering. The child starts with the first one."""
        self._setup = Setup(template=template, timeout_s=timeout_s, max_bytes=_MAX_BYTES, max_chars=_MAX_CHARS)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def render(self, variables: dict[str, object]) -> str:
        """Render with plain JSON values; raises TemplateRefusedError or TemplateFaultError within about the limit."""
        if not self._lock.acquire(timeout=self._timeout_s):
            raise TemplateFaultError(self._too_slow())
        try:
            reply = self._ask(Call(variables))
        finally:
            self._lock.release()
        if reply.refused is not None:
            raise TemplateRefusedError(reply.refused)
        if reply.text is None:
            raise TemplateFaultError(reply.fault or "no text")
        return reply.text

    def close(self) -> None:
        """End the child; idempotent. A later rendering starts a new one."""
        with self._lock:
            self._drop()

    def _ask(self, call: Call) -> Reply:
        is_fresh = self._child is None
        if self._child is None:
            self._child = _Child(self._setup)
        started = time.monotonic()
        try:
            return self._child.ask(call, self._timeout_s + _GRACE_S)
        except (OverflowError, TypeError, ValueError) as error:
            raise TemplateFaultError(f"the conversation cannot be encoded: {error}") from error
        except (EOFError, OSError):
            self._drop()
        if time.monotonic() - started >= self._timeout_s:
            raise TemplateFaultError(self._too_slow())
        if is_fresh:
            raise TemplateFaultError("the template ended its process (too much memory?)")
        # A child that waited idle may have been killed by anyone: ask a new one, once.
        return self._ask(call)

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _too_slow(self) -> str:
        return f"the template did not finish within {self._timeout_s:g} s"


class _Child:
    """One running process with its compiled template."""

    def __init__(self, setup: Setup) -> None:
        """Start it and wait until it has compiled; raises TemplateFaultError."""
        self._peer, theirs = socket.socketpair()
        with theirs:
            # A session of its own keeps the terminal's Ctrl-C away; the closing socket ends it with its parent.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headrace.shared.text.render_child"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            reply = self.ask(setup, _START_S + setup.timeout_s)
        except (EOFError, OSError) as error:
            self.kill()
            raise TemplateFaultError("the template did not compile within its limits") from error
        if reply.text is None:
            self.kill()
            raise TemplateFaultError(reply.fault or "the template does not compile")

    def ask(self, message: msgspec.Struct, timeout_s: float) -> Reply:
        """One round trip; raises TimeoutError, EOFError, OSError."""
        self._peer.settimeout(timeout_s)
        send(self._peer, message)
        return msgspec.msgpack.decode(receive(self._peer), type=Reply)

    def kill(self) -> None:
        """End the process and collect it."""
        self._peer.close()
        self._process.kill()
        self._process.wait()
