"""How a stage process is started: its command, its environment, its worker id."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.shared.ids import new_wid
from headrace.up.child import Child
from headrace.up.relay import Relay


class StageLauncher:
    """Starts stage processes that all share one configuration file and, for ingress, one listening socket."""

    def __init__(self, config_file: Path, listen_fd: int, relay: Relay) -> None:
        self._config_file = config_file
        self._listen_fd = listen_fd
        self._relay = relay

    async def __call__(self, stage: str) -> Child:
        """Start one process; raises OSError when the machine has none left to give."""
        wid = new_wid(stage)
        listen_fd = self._listen_fd if stage == "ingress" else None
        env = child_env(os.environ, wid, listen_fd)
        argv = (sys.executable, "-m", "headrace", stage, "--config", str(self._config_file))
        return await Child.start(stage, wid, argv, env, self._relay, () if listen_fd is None else (listen_fd,))


def child_env(environ: Mapping[str, str], wid: str, listen_fd: int | None) -> dict[str, str]:
    """Our environment without our settings (the file holds the effective ones, and they must not be overridden)."""
    kept = {name: value for name, value in environ.items() if not (name.startswith("HEADRACE_") and "__" in name)}
    kept |= {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "HEADRACE_WID": wid}
    return kept if listen_fd is None else kept | {"HEADRACE_LISTEN_FD": str(listen_fd)}
