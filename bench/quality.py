#!/usr/bin/env python3
"""How far each numeric form lies from fp32: Kullback-Leibler divergence and agreement on the next token.

Every text of `bench/texts` goes through the decoder as one prompt; the distributions after each of its tokens are
compared with those of fp32. Prints a table in Markdown and writes `build/quality.json`.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from headrace.shared.catalogue import ModelFiles, resolve
from headrace.shared.config import Model
from headrace.shared.engine.batch import Row, build_batch
from headrace.shared.engine.storage import KVStorage
from headrace.shared.errors import ConfigError, ModelError
from headrace.shared.model.load import LoadedModel, Terms, load_model
from headrace.shared.text.model import load_text_model

TEXTS = Path(__file__).parent / "texts"
OUT = Path("build/quality.json")
TORCH_BLOCK_TOKENS = 8
"""Blocks that the compiled kernels do not take."""
ORACLE = "fp32"
FORMS = {
    "bf16": Terms(profile="bf16"),
    "int4": Terms(profile="int4"),
    "w8a8": Terms(profile="w8a8"),
    "int4-torch": Terms(profile="int4", block_tokens=TORCH_BLOCK_TOKENS),
    "w8a8-torch": Terms(profile="w8a8", block_tokens=TORCH_BLOCK_TOKENS),
    "deterministic-torch": Terms(deterministic=True, block_tokens=TORCH_BLOCK_TOKENS),
}
"""What is compared with the oracle unless `--profiles` says otherwise: forms of this machine, then those in torch."""


@dataclass(frozen=True, slots=True)
class Score:
    """One form on one text."""

    profile: str
    text: str
    num_tokens: int
    mean_kl: float
    """Nats, of the form's distribution from that of fp32."""
    largest_kl: float
    agreement: float
    """Share of positions where both hold the same token for the likeliest."""


def main() -> int:
    """Score all forms; exit code 2 where the model or a form is not to be had."""
    args = _arguments()
    try:
        files = resolve(args.model, args.models_dir)
        scores = measure(files, args.profiles, args.device)
    except (ModelError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 2
    OUT.parent.mkdir(exist_ok=True)
    document = {"model": args.model, "torch": torch.__version__, "scores": [asdict(score) for score in scores]}
    OUT.write_text(json.dumps(document, indent=1))
    print(table(args.model, scores))
    return 0


def measure(files: ModelFiles, profiles: list[str], device: str) -> list[Score]:
    """Scores of each form on each text, form by form."""
    tokenizer = load_text_model(files).tokenizer
    texts = {path.stem: path.read_text() for path in sorted(TEXTS.iterdir())}
    ids = {name: tokenizer.encode(text, add_special=True) for name, text in texts.items()}
    oracle = load_model(files, Terms(profile=ORACLE, device=device))
    expected = {name: logits(oracle, tokens) for name, tokens in ids.items()}
    scores = []
    for profile in profiles:
        terms = replace(FORMS[profile], device=device)
        model = load_model(files, terms)
        for name, tokens in ids.items():
            score = compare(expected[name], logits(model, tokens, terms.block_tokens))
            scores.append(Score(model.profile, name, len(tokens), *score))
    return scores


def logits(model: LoadedModel, ids: list[int], block_tokens: int = 16) -> Tensor:
    """[tokens, vocab] after each token of one prompt."""
    num_blocks = -(-len(ids) // block_tokens)
    storage = KVStorage(
        model.config, num_blocks, block_tokens, model.kv_dtype, model.device, head_size=model.kv_head_size
    )
    batch = build_batch([Row(ids, 0, list(range(num_blocks)), wants_logits=True)], block_tokens, model.device)
    everywhere = torch.arange(len(ids), device=model.device)
    with torch.inference_mode():
        return model.decoder(replace(batch, logit_rows=everywhere), storage)


def compare(oracle: Tensor, form: Tensor) -> tuple[float, float, float]:
    """Mean and largest divergence over all positions, and the share of equal first choices."""
    expected, found = oracle.double().log_softmax(-1), form.double().log_softmax(-1)
    kl = (expected.exp() * (expected - found)).sum(-1)
    same = oracle.argmax(-1) == form.argmax(-1)
    return kl.mean().item(), kl.max().item(), same.double().mean().item()


def table(model: str, scores: list[Score]) -> str:
    """One line per form: means over all tokens, and the text it does worst on."""
    lines = [
        f"| {model} | mean KL | worst text | its mean KL | largest KL | same first choice |",
        "|---|---|---|---|---|---|",
    ]
    for profile in dict.fromkeys(score.profile for score in scores):
        mine = [score for score in scores if score.profile == profile]
        num_tokens = sum(score.num_tokens for score in mine)
        mean = sum(score.mean_kl * score.num_tokens for score in mine) / num_tokens
        agreement = sum(score.agreement * score.num_tokens for score in mine) / num_tokens
        worst = max(mine, key=lambda score: score.mean_kl)
        largest = max(score.largest_kl for score in mine)
        lines.append(
            f"| {profile} | {mean:.5f} | {worst.text} | {worst.mean_kl:.5f} | {largest:.3f} | {agreement:.3f} |"
        )
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=Model().names[0], help="name in the catalogue, or a path")
    parser.add_argument("--models-dir", default=Model().dir, help="where model files are kept")
    parser.add_argument("--profiles", type=lambda names: names.split(","), default=list(FORMS), help="comma-separated")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    if unknown := set(args.profiles) - set(FORMS):
        parser.error(f"--profiles: no {min(unknown)}; known are {', '.join(FORMS)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
