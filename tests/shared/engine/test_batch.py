"""A step as tensors: where rows go, which keys they see, and what is not served."""

import pytest
import torch

from headrace.shared.engine.batch import Batch, Row, build_batch
from headrace.shared.errors import ModelError

CPU = torch.device("cpu")


def visible(batch, window=None, heads_per_kv=1):
    """Slots each row sees, by row."""
    seen = {}
    for group in batch.groups(window, heads_per_kv, torch.float32):
        b, m = group.num_sequences, group.num_queries
        slots = group.slots.view(b, -1)
        bias = torch.zeros(b, 1, m, slots.shape[1]) if group.bias is None else group.bias[:, :, ::heads_per_kv]
        for i in range(b):
            for j in range(m):
                seen[group.rows.start + i * m + j] = slots[i][bias[i, 0, j] == 0].tolist()
    return seen


def test_tokens_go_to_the_slots_their_block_table_names():
    batch = build_batch([Row([7, 8, 9], 3, [5, 2], wants_logits=True)], 4, CPU)

    assert batch.ids.tolist() == [7, 8, 9]
    assert batch.positions.tolist() == [3, 4, 5]
    assert batch.slots.tolist() == [23, 8, 9]
    assert batch.logit_rows.tolist() == [2]


def test_logit_rows_keep_the_callers_order_and_leave_out_what_nobody_wants():
    rows = [
        Row([1, 2], 0, [0], wants_logits=True),
        Row([3], 9, [1, 2, 3], wants_logits=True),
        Row([4], 6, [4, 5], wants_logits=False),
        Row([5], 2, [6], wants_logits=True),
    ]

    batch = build_batch(rows, 4, CPU)

    assert batch.ids[batch.logit_rows].tolist() == [2, 3, 5]
    assert [span.num_new for span in batch.spans] == [1, 1, 1, 2]
    assert [span.context for span in batch.spans] == [3, 7, 10, 2]


@pytest.mark.parametrize("heads_per_kv", [1, 3])
def test_every_row_sees_its_own_sequence_up_to_itself(heads_per_kv):
    rows = [
        Row([1, 2, 3], 2, [3, 1], wants_logits=True),
        Row([4], 5, [4, 6], wants_logits=True),
        Row([5], 0, [9], wants_logits=True),
    ]

    batch = build_batch(rows, 4, CPU)

    assert visible(batch, heads_per_kv=heads_per_kv) == {
        0: [36],
        1: [16, 17, 18, 19, 24, 25],
        2: [12, 13, 14],
        3: [12, 13, 14, 15],
        4: [12, 13, 14, 15, 4],
    }


def test_a_window_keeps_the_newest_keys():
    rows = [Row([1, 2, 3], 2, [3, 1], wants_logits=True), Row([4], 5, [4, 6], wants_logits=True)]

    batch = build_batch(rows, 4, CPU)

    assert visible(batch, window=2) == {0: [24, 25], 1: [13, 14], 2: [14, 15], 3: [15, 4]}
    assert [group.slots.numel() for group in batch.groups(2, 1, torch.float32)] == [2, 4]


def test_a_long_context_does_not_pad_the_short_ones():
    short, long = [Row([1], n, [0] * 40, wants_logits=True) for n in (10, 200, 250)], Row([2], 2000, [0] * 200, True)

    groups = build_batch([long, *short], 16, CPU).groups(None, 1, torch.float32)

    assert [(group.num_sequences, len(group.slots)) for group in groups] == [(3, 753), (1, 2001)]


def test_equal_contexts_need_no_mask():
    rows = [Row([1], 9, [i] * 3, wants_logits=True) for i in range(4)]

    (group,) = build_batch(rows, 4, CPU).groups(None, 1, torch.float32)

    assert group.bias is None


def test_other_masks_are_refused():
    batch = build_batch([Row([1], 0, [0], wants_logits=True)], 4, CPU)

    with pytest.raises(ModelError, match="mask kind 'block' is not served yet"):
        Batch(batch.ids, batch.positions, batch.slots, batch.logit_rows, batch.spans, 4, mask="block")
