"""Small tokenizers and model files of every kind the text library reads, made on the spot."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from headrace.shared.catalogue import ModelFiles, resolve
from headrace.shared.config import Model
from headrace.shared.text.chat import Chat
from headrace.shared.text.model import TextModel, load_text_model
from headrace.shared.text.template import ChatTemplate
from headrace.shared.text.token_bytes import byte_alphabet
from headrace.shared.text.tokenizer import HfTokenizer


def byte_level(*specials: str) -> tokenizers.Tokenizer:
    """A byte-level BPE with one merge, `th`; special tokens follow the 257 ordinary ids."""
    vocab = {char: byte for byte, char in byte_alphabet().items()} | {"th": 256}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    return tokenizer


@pytest.fixture
def byte_tokenizer() -> HfTokenizer:
    """Byte-level BPE with `<s>` 257, `</s>` 258 and the ChatML markers 259 and 260; adds no BOS."""
    return HfTokenizer(byte_level("<s>", "</s>", "<|im_start|>", "<|im_end|>"), bos="<s>", eos="</s>")


@pytest.fixture
def scripted() -> TextModel:
    """The scripted model."""
    return load_text_model(ModelFiles(name="scripted", kind="scripted", path=Path(), fingerprint="00"))


@pytest.fixture
def open_chat() -> Iterator[Callable[..., Chat]]:
    """Make a `Chat` from a template's source; closed at the end."""
    opened: list[Chat] = []

    def make(source: str, *, timeout_s: float = 5.0, variables: dict[str, str] | None = None) -> Chat:
        chat = Chat("tiny", ChatTemplate(source, variables or {}), timeout_s=timeout_s)
        opened.append(chat)
        return chat

    yield make
    for chat in opened:
        chat.close()


def gguf_bytes(metadata: dict[str, object]) -> bytes:
    """A GGUF file of metadata alone."""
    body = b"".join(_text(key) + _typed(value) for key, value in metadata.items())
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(metadata)) + body


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: object) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    assert isinstance(value, list)
    items = [_typed(item) for item in value]
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


GPT2_TOKENS = [*byte_alphabet().values(), "th", "12", "<s>", "</s>", "<|im_end|>"]
GPT2 = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": GPT2_TOKENS,
    "tokenizer.ggml.token_type": [1] * 258 + [3, 3, 3],
    "tokenizer.ggml.merges": ["t h", "1 2"],
    "tokenizer.ggml.bos_token_id": 258,
    "tokenizer.ggml.eos_token_id": 259,
    "tokenizer.ggml.eot_token_id": 260,
    "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}",
}
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPM_PIECES = ["▁", "a", "b", "ab", "▁a", "▁ab", "c", "bc"]
SPM = {
    "general.architecture": "gemma3",
    "gemma3.context_length": 128,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<bos>", "<unk>", "\n\n", *_BYTES, *SPM_PIECES],
    "tokenizer.ggml.scores": [-1000.0] * 261 + [-5.0, -6.0, -7.0, -2.0, -1.0, -3.0, -8.0, -1.5],
    "tokenizer.ggml.token_type": [3, 3, 3, 2, 4] + [6] * 256 + [1] * len(SPM_PIECES),
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.unknown_token_id": 3,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_space_prefix": False,
}


@pytest.fixture
def gguf_model(tmp_path: Path) -> Callable[..., TextModel]:
    """Load a model from GGUF metadata: `gpt2` or `spm` with changes (None removes a key)."""
    kinds = {"gpt2": GPT2, "spm": SPM}

    def load(kind: str, **options: object) -> TextModel:
        changes = options.pop("changes", {})
        assert isinstance(changes, dict)
        metadata = {key: value for key, value in {**kinds[kind], **changes}.items() if value is not None}
        path = tmp_path / "model.gguf"
        path.write_bytes(gguf_bytes(metadata))
        return load_text_model(ModelFiles(name="tiny", kind="gguf", path=path, fingerprint="f" * 64), **options)

    return load


@pytest.fixture
def hf_model(tmp_path: Path) -> Callable[..., TextModel]:
    """Load a model from a directory in Hugging Face form; keywords are its JSON files by stem, objects or raw text."""

    def load(**files: dict[str, object] | str) -> TextModel:
        files.setdefault("tokenizer", byte_level("<s>", "</s>", "<|im_end|>").to_str())
        files.setdefault("config", {"max_position_embeddings": 32})
        for stem, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{stem}.json").write_text(text)
        return load_text_model(ModelFiles(name="tiny", kind="hf", path=tmp_path, fingerprint="f" * 64))

    return load


@pytest.fixture
def hf_model_with_gguf_vocabulary(tmp_path: Path) -> TextModel:
    """A Hugging Face directory without `tokenizer.json`, with a GGUF vocabulary beside the weights."""
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 32}))
    (tmp_path / "vocab.gguf").write_bytes(gguf_bytes(GPT2))
    return load_text_model(ModelFiles(name="tiny", kind="hf", path=tmp_path, fingerprint="f" * 64))


@pytest.fixture(scope="session")
def catalogue_model() -> Callable[[str], TextModel]:
    """Load a model of the catalogue."""
    loaded: dict[str, TextModel] = {}

    def load(name: str) -> TextModel:
        if name not in loaded:
            loaded[name] = load_text_model(resolve(name, Model().dir, check=False))
        return loaded[name]

    return load
