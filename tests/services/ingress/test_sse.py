import msgspec
import pytest

from headrace.ingress import sse


@pytest.mark.parametrize("text", ["plain", "é😀", "a\u2028b\u2029c\u0085d", "\r\n"])
def test_a_frame_is_one_line_and_the_same_json(text):
    frame = sse.data(msgspec.json.encode(text))

    assert frame.decode().splitlines() == [frame.decode()[:-2], ""]
    assert msgspec.json.decode(frame[6:]) == text
