"""Greedy ids of the real models equal the reference, token by token."""

import json
from pathlib import Path

import pytest
import torch

from headrace.shared.engine.batch import Row, build_batch
from headrace.shared.engine.storage import KVStorage
from headrace.shared.model.load import Terms, load_model

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

GOLDEN = Path(__file__).parents[2] / "golden"
FILES = {"smollm2-135m-instruct": "golden-smollm2-dev.json", "gemma3-270m": "golden-gemma3-dev.json"}
BLOCK_TOKENS, BLOCKS = 16, 8
TIE = 0.002
"""Below this gap between the two best log-probabilities the order is left to rounding."""
OPENING = 8


@pytest.fixture(scope="session")
def references():
    return {name: json.loads((GOLDEN / file).read_text("utf-8"))["rows"] for name, file in FILES.items()}


@pytest.mark.parametrize("name", FILES)
def test_fp32_follows_the_reference_to_the_end(catalogue_model, references, name):
    rows = references[name]
    loaded = load_model(catalogue_model(name), Terms(profile="fp32", device="cpu"))

    answers = greedy(loaded, rows, [len(row["greedy_ids"]) for row in rows])

    for row, answer in zip(rows, answers, strict=True):
        pairs = zip(answer, row["greedy_ids"], row["top2_gaps"], strict=True)
        first = next((gap for ours, theirs, gap in pairs if ours != theirs), None)
        assert first is None or first < TIE, row["rendered"]


@pytest.mark.parametrize("profile", ["auto", "bf16"])
def test_answers_open_as_the_reference_does(catalogue_model, references, profile):
    """bf16 may take another turn at a near tie: 14 of 15 were equal when this was written."""
    same = total = 0
    for name, rows in references.items():
        loaded = load_model(catalogue_model(name), Terms(profile=profile, device="cpu"))
        openings = [row["greedy_ids"][:OPENING] for row in rows]
        answers = greedy(loaded, rows, [len(opening) for opening in openings])
        same += sum(answer == opening for answer, opening in zip(answers, openings, strict=True))
        total += len(rows)

    assert total == 15
    assert same >= 12


@torch.inference_mode()
def greedy(loaded, rows, lengths):
    """The likeliest ids of every row, all rows in one batch."""
    storage = KVStorage(
        loaded.config,
        BLOCKS * len(rows),
        BLOCK_TOKENS,
        loaded.kv_dtype,
        loaded.device,
        head_size=loaded.kv_head_size,
    )
    tokens = [list(row["prompt_ids"]) for row in rows]
    done = [0] * len(rows)
    ends = [len(row["prompt_ids"]) + length for row, length in zip(rows, lengths, strict=True)]
    while running := [i for i in range(len(rows)) if len(tokens[i]) < ends[i]]:
        step = [
            Row(tokens[i][done[i] :], done[i], list(range(BLOCKS * i, BLOCKS * (i + 1))), wants_logits=True)
            for i in running
        ]
        logits = loaded.decoder(build_batch(step, BLOCK_TOKENS, loaded.device), storage)
        for i, best in zip(running, logits.argmax(-1).tolist(), strict=True):
            done[i] = len(tokens[i])
            tokens[i].append(best)
    return [ids[len(row["prompt_ids"]) :] for ids, row in zip(tokens, rows, strict=True)]
