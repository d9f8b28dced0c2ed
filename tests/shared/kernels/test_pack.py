"""Packing: every integer, scale and offset lies where the kernels look for it."""

import pytest
import torch

from headrace.shared.kernels.pack import GROUP, TILE, Weight, pack


def random_weight(rows, inputs, bits, half=True, **options):
    rng = torch.Generator().manual_seed(rows + inputs + bits)
    q = torch.randint(0, 1 << bits, (rows, inputs), dtype=torch.uint8, generator=rng)
    scale, offset = torch.rand((2, rows, inputs // GROUP), generator=rng)
    if half:
        scale, offset = scale.half().float(), offset.half().float()
    return Weight(q, scale, offset, bits, **options)


def byte_at(group_bytes, row, index, bits):
    """The integer of one weight, looked up as csrc/linear.h describes the layout."""
    quad, within = divmod(index, 4)
    if bits == 8:
        return int(group_bytes[quad * 64 + row * 4 + within])
    return int(group_bytes[quad % 4 * 64 + row * 4 + within]) >> (4 * (quad // 4)) & 15


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_each_weight_is_found_in_its_tile(bits, half):
    weight = random_weight(48, 96, bits, half)

    packed = pack(weight)

    tiles, kind = packed.held[0], torch.float16 if half else torch.float32
    assert packed.linear.has_half_scales == half
    for row in range(48):
        tile, lane = divmod(row, TILE)
        for column in range(96):
            group, index = divmod(column, GROUP)
            assert byte_at(tiles[tile, group], lane, index, bits) == weight.q[row, column]
        scales = tiles[tile, :, GROUP * TILE * bits // 8 :].contiguous().view(kind).float()
        assert torch.equal(scales[:, lane], weight.scale[row])
        assert torch.equal(scales[:, TILE + lane], weight.offset[row])


def test_tiles_of_gate_and_up_alternate():
    weight = random_weight(128, 32, 8, is_paired=True, bias=torch.arange(128.0))

    tiles, _, bias = pack(weight).held

    firsts = [int(bias[tile * TILE]) for tile in range(8)]
    assert firsts == [0, 64, 16, 80, 32, 96, 48, 112]
    assert [byte_at(tiles[1, 0], 0, column, 8) for column in range(32)] == weight.q[64].tolist()


def test_a_packed_weight_takes_little_more_than_its_bits():
    packed = pack(random_weight(64, 64, 4))

    assert packed.num_bytes == 64 * 64 // 2 + 2 * 2 * 64 * 64 // GROUP
    assert packed.linear.tiles % 64 == 0
