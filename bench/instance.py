"""An instance of headrace with a port and a data directory of its own."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from processes import Server, rss_bytes, running

HEADRACE = (sys.executable, "-P", "-m", "headrace")
_READY = re.compile(r"^ready (http://\S+)$", re.MULTILINE)


@contextmanager
def headrace(name: str, args: Sequence[str], model: str, folder: Path) -> Iterator[Server]:
    """`headrace up` with `args`, its data under `folder`, which is emptied first; raises ServerError."""
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_suffix(".log")
    command = [*HEADRACE, "up", "--port", "0", "--data-dir", str(folder), *args]
    with running(command, log, is_ready=lambda: _url(log) is not None) as pid:
        url = _url(log)
        assert url is not None, "it is ready"
        yield Server(name, url, model, lambda: _rss_bytes(pid, url))
    shutil.rmtree(folder, ignore_errors=True)


def _url(log: Path) -> str | None:
    found = _READY.search(log.read_text("utf-8", "replace"))
    return found and found[1]


def _rss_bytes(supervisor: int, url: str) -> dict[str, int]:
    """By stage; several workers of one stage add up."""
    listed = subprocess.run([*HEADRACE, "ps", "--json", "--url", url], capture_output=True, check=True, text=True)
    sizes = {"up": rss_bytes(supervisor)}
    for row in json.loads(listed.stdout):
        if row["pid"]:
            sizes[row["stage"]] = sizes.get(row["stage"], 0) + rss_bytes(row["pid"])
    return sizes
