"""The linter finds what it is for: a clean stream passes, each fault is named."""

import pytest

START = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"f","choices":['
ROLE = f'data: {START}{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
TEXT = f'data: {START}{{"index":0,"delta":{{"content":"a"}},"finish_reason":null}}]}}\n\n'
END = f'data: {START}{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}\n\n'
USAGE = f'data: {START}],"usage":{{"total_tokens":1}}}}\n\n'
ERROR = 'data: {"error":{"message":"m","type":"t","param":null,"code":null}}\n\n'
DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    "stream", [ROLE + TEXT + END + DONE, ": hi\n\n" + ROLE + END + DONE, ROLE + TEXT + ERROR + DONE]
)
def test_clean_streams_pass(lint, stream):
    assert lint(stream.encode()) == []


@pytest.mark.parametrize(
    "stream",
    [
        ROLE + TEXT + END,
        ROLE + TEXT + END + DONE[:-1],
        ROLE + TEXT + END + DONE + DONE,
        ROLE + TEXT + DONE,
        TEXT + END + DONE,
        ROLE + ROLE + END + DONE,
        ROLE + END + TEXT + DONE,
        ROLE + END + END + DONE,
        ROLE + END + USAGE + DONE,
        ROLE + TEXT.replace('"c"', '"d"') + END + DONE,
        ROLE + TEXT.replace('"a"', '"a","tool_calls":null') + END + DONE,
        ROLE + TEXT.replace("a", "\u2028") + END + DONE,
        "id: 1\n\n" + ROLE + END + DONE,
        "event: ping\n\n" + ROLE + END + DONE,
    ],
)
def test_faults_are_found(lint, stream):
    assert lint(stream.encode()) != []


def test_bytes_that_are_no_text_are_found(lint):
    assert lint(b"data: \xff\n\n") != []


def test_usage_must_be_there_when_asked_for(lint):
    assert lint((ROLE + END + DONE).encode(), usage=True) != []
