"""Child processes that cannot outlive this one. Knows nothing of what they run.

On Linux the kernel kills them when we die, whatever kills us. The order must be given by the child itself before it
becomes the program, so a tiny interpreter does it and then replaces itself: no code runs between fork and exec here,
where other threads may hold locks.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import IO

_BOOT = """\
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
"""


async def spawn(
    argv: Sequence[str],
    *,
    output: IO[bytes] | int,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    """Start `argv` with stdout and stderr going to `output`, in its own session (a Ctrl-C reaches only us).

    Call it on the main thread: the kernel's "parent" is the thread that forked.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _BOOT, str(os.getpid()), *argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended.

    Not by the process's own methods: they look for its end first, and when they find it asyncio's watcher no longer
    does and reports exit code 255.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
