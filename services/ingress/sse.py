"""Server-sent-event framing: bytes in, frames out. Knows no protocol and no connection."""

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

# Line separators beyond \n and \r: legal inside JSON, but clients that cut lines with str.splitlines break on them.
_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def data(json: bytes) -> bytes:
    """One `data:` frame without an event name; `json` holds no raw line breaks."""
    return b"data: " + one_line(json) + b"\n\n"


def one_line(json: bytes) -> bytes:
    """The same JSON with every Unicode line separator escaped."""
    for separator, escaped in _SEPARATORS:
        if separator in json:
            json = json.replace(separator, escaped)
    return json
