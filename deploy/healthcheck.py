"""Container health: exits 0 when the container's main process answers on its metrics page, else 1 with the reason.

The page is on a free loopback port, so it is found the way `ss` finds it: the main process's listening sockets.
"""

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

LISTEN = "0A"
LOOPBACK = "0100007F"
"""127.0.0.1 as the kernel prints it."""


def main(pid: int = 1) -> str | None:
    """What is wrong, or None."""
    reason = f"process {pid} listens on no port of 127.0.0.1"
    for port in _listening_ports(pid):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=3):
                return None
        except (urllib.error.URLError, OSError) as error:
            reason = f"port {port}: {error}"
    return reason


def _listening_ports(pid: int) -> Iterator[int]:
    sockets = {_target(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path(f"/proc/{pid}/net/tcp").read_text("ascii").splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        address, _, port = local.partition(":")
        if (address, state) == (LOOPBACK, LISTEN) and f"socket:[{inode}]" in sockets:
            yield int(port, 16)


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # closed since it was listed
        return ""


if __name__ == "__main__":
    sys.exit(main())
