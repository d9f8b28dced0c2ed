"""Models named `hf:org/name`: snapshots in the Hugging Face cache of this machine.

The optional package `huggingface_hub` does the work and reads its own settings (`HF_HOME`, `HF_HUB_OFFLINE`, tokens).
"""

import importlib
import re
from pathlib import Path

from headrace.shared.errors import ModelError

PREFIX = "hf:"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_WANTED = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]


def repo_of(name: str) -> str:
    """The repository `org/name` of `hf:org/name`; raises ModelError on any other form."""
    repo = name.removeprefix(PREFIX)
    if not _REPO.fullmatch(repo):
        raise ModelError(f"model {name}: expected hf:org/name")
    return repo


def snapshot(name: str, *, download: bool) -> Path:
    """The folder of the newest snapshot; fetched first if `download` and the hub may be asked. Raises ModelError."""
    repo = repo_of(name)
    try:
        hub = importlib.import_module("huggingface_hub")
        errors = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise ModelError(
            f"model {name}: the package huggingface_hub is not installed; install it or name a local directory"
        ) from error
    try:
        return Path(hub.snapshot_download(repo, allow_patterns=_WANTED, local_files_only=not download))
    except errors.LocalEntryNotFoundError as error:
        where = "the hub is out of reach and the" if download else "the"
        hint = "" if download else f"; run: headrace models pull {name}"
        raise ModelError(f"model {name}: {where} Hugging Face cache of this machine has no snapshot{hint}") from error
    except (OSError, ValueError) as error:  # the hub's own errors are all one of these
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"model {name}: {reason}") from error
