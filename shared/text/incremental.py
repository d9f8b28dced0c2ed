"""Bytes of tokens to text, a piece at a time: no half characters, no U+FFFD that later bytes would resolve."""

import codecs


class IncrementalDecoder:
    """UTF-8 decoder that holds at most three bytes; bytes that can no longer complete become U+FFFD at once.

    The concatenation of everything returned equals `all_bytes.decode("utf-8", "replace")`, however they were cut.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """Take bytes in, return the characters they complete."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End of input: an incomplete character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
