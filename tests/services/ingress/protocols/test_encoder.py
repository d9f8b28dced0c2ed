"""Records in, bytes out: golden frames, and what holds for every log."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingress.dialect import Problem
from headrace.ingress.protocols import PROTOCOLS, Head
from headrace.ingress.protocols.options import Render
from headrace.shared.packing import pack_ids
from headrace.shared.records import (
    ChoiceChunk,
    ChoiceEnd,
    EndEvent,
    FinRecord,
    PromptUsage,
    TextEvent,
    TokRecord,
)

HEAD = Head(rid="r1", created=1_760_000_000, model="m", fingerprint="fp_0123456789ab")
ADAPTERS = {adapter.protocol: adapter for adapter in PROTOCOLS}
START = (
    b'data: {"id":"%s","object":"%s","created":1760000000,"model":"m","system_fingerprint":"fp_0123456789ab",'
    b'"service_tier":"default","choices":['
)
CHAT = START % (b"chatcmpl-r1", b"chat.completion.chunk")
TEXT = START % (b"cmpl-r1", b"text_completion")
USAGE = (
    b'"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":2,'
    b'"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,'
    b'"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}'
)


def tok(offset, ids, *events, prompt=None, prompt_ids=None):
    return TokRecord(choices=(ChoiceChunk(o=offset, t=pack_ids(ids), ev=events),), prompt=prompt, prompt_ids=prompt_ids)


def fin(num, cause="eos", match=None):
    return FinRecord(choices=(ChoiceEnd(n=num, cause=cause, match=match),))


LOG = [
    tok(0, [1], TextEvent("Hel"), prompt=PromptUsage(9, 2), prompt_ids=pack_ids([7, 8])),
    tok(1, [2]),
    tok(2, [3], TextEvent("lo"), EndEvent("eos")),
]


def encoder(protocol="chat", **options):
    return ADAPTERS[protocol].encoder(HEAD, msgspec.msgpack.encode(Render(**options)))


def frames(encoder, log=LOG, end=None):
    out = [frame for record in log for frame in encoder.tok(record)]
    return out + encoder.fin(end or fin(3))


def test_golden_chat_stream():
    assert frames(encoder()) == [
        CHAT + b'{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,'
        b'"finish_reason":null}]}\n\n',
        CHAT + b'{"index":0,"delta":{"content":"Hel"},"logprobs":null,"finish_reason":null}]}\n\n',
        CHAT + b'{"index":0,"delta":{"content":"lo"},"logprobs":null,"finish_reason":null}]}\n\n',
        CHAT + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_golden_completions_stream():
    assert frames(encoder("completion"), end=fin(3)) == [
        TEXT + b'{"index":0,"text":"Hel","logprobs":null,"finish_reason":null}]}\n\n',
        TEXT + b'{"index":0,"text":"lo","logprobs":null,"finish_reason":null}]}\n\n',
        TEXT + b'{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null}]}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_golden_usage_chunk_and_null_usage_before_it():
    out = frames(encoder(include_usage=True))

    assert out[1] == (
        CHAT + b'{"index":0,"delta":{"content":"Hel"},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
    )
    assert out[-2] == CHAT + b"]," + USAGE + b"}\n\n"
    assert all(b'"usage":null' in frame for frame in out[:-2])


def test_running_usage_is_in_every_chunk():
    out = frames(encoder(include_usage=True, continuous_usage=True))

    totals = [msgspec.json.decode(frame[6:])["usage"]["completion_tokens"] for frame in out[:-1]]
    assert totals == [1, 1, 3, 3, 3]


def test_token_ids_ride_on_the_choice_and_prompt_ids_on_the_first_chunk():
    out = [msgspec.json.decode(frame[6:]) for frame in frames(encoder(token_ids=True))[:-1]]

    ids = [chunk["choices"][0]["token_ids"] for chunk in out]
    assert ids == [[], [1], [2], [3], []]
    assert [chunk.get("prompt_token_ids") for chunk in out] == [[7, 8], None, None, None, None]
    assert [chunk["choices"][0]["delta"].get("content") for chunk in out] == ["", "Hel", "", "lo", None]


@pytest.mark.parametrize(
    ("cause", "match", "reason"),
    [
        ("eos", None, "stop"),
        ("stop", "END", "stop"),
        ("stop", 17, "stop"),
        ("length", None, "length"),
        ("context", None, "length"),
    ],
)
@pytest.mark.parametrize("protocol", ["chat", "completion"])
def test_causes_become_finish_reasons(protocol, cause, match, reason):
    log = [tok(0, [1], TextEvent("a"), EndEvent(cause, match))]

    finish = msgspec.json.decode(frames(encoder(protocol), log, fin(1, cause, match))[-2][6:])["choices"][0]
    plain = msgspec.json.decode(encoder(protocol).reply(log, fin(1, cause, match)))["choices"][0]

    assert (finish["finish_reason"], finish["stop_reason"]) == (reason, match)
    assert (plain["finish_reason"], plain["stop_reason"]) == (reason, match)


def test_an_answer_without_tokens_still_opens_and_finishes():
    out = encoder().fin(FinRecord(choices=(ChoiceEnd(n=0, cause="length"),), prompt=PromptUsage(9, 2)))

    assert [b'"role"' in frame for frame in out] == [True, False, False]
    assert b'"finish_reason":"length"' in out[1]


def test_a_record_that_shows_nothing_makes_no_frame():
    assert encoder().tok(tok(0, [1])) == []


def test_a_failure_is_told_and_no_choice_pretends_to_be_finished():
    failing = encoder()
    opened = failing.tok(tok(0, [1], TextEvent("a"), EndEvent("error")))
    out = failing.failure(Problem(500, "server_error", "broken", "internal_error"))

    assert not any(b'"finish_reason":"' in frame for frame in opened + out)
    assert out == [
        b'data: {"error":{"message":"broken","type":"server_error","param":null,"code":"internal_error"}}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_the_callers_id_ends_the_reply_id():
    body = msgspec.json.decode(encoder(suffix="abc-1").reply(LOG, fin(3)))

    assert body["id"] == "chatcmpl-r1-abc-1"


def test_golden_plain_reply():
    assert encoder().reply(LOG, fin(3)) == (
        b'{"id":"chatcmpl-r1","object":"chat.completion","created":1760000000,"model":"m",'
        b'"system_fingerprint":"fp_0123456789ab","service_tier":"default","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":"Hello","refusal":null,"annotations":[]},"logprobs":null,'
        b'"finish_reason":"stop","stop_reason":null}],' + USAGE + b"}"
    )


def test_plain_reply_with_ids():
    body = msgspec.json.decode(encoder("completion", token_ids=True).reply(LOG, fin(3)))

    assert (body["choices"][0]["token_ids"], body["prompt_token_ids"]) == ([1, 2, 3], [7, 8])


texts = st.text(alphabet=st.sampled_from('a\u2028\u2029\u0085\r\n"\\é。😀'), max_size=4)
logs = st.lists(st.tuples(texts, st.integers(0, 3)), max_size=8)


@given(pieces=logs, protocol=st.sampled_from(["chat", "completion"]), usage=st.booleans(), ids=st.booleans())
def test_a_stream_joins_to_the_plain_reply(pieces, protocol, usage, ids):
    """Also: every frame is one line per event whatever separators the text holds, and equal logs give equal bytes."""
    log, offset = [], 0
    for text, num in pieces:
        log.append(
            tok(offset, range(offset, offset + num), *([TextEvent(text)] if text else []), prompt=PromptUsage(9))
        )
        offset += num
    end = fin(offset, "length")
    options = {"include_usage": usage, "token_ids": ids}

    out = frames(encoder(protocol, **options), log, end)

    assert out == frames(encoder(protocol, **options), log, end)
    assert all(len(frame.decode().splitlines()) == 2 for frame in out)
    chunks = [msgspec.json.decode(frame[6:]) for frame in out[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    plain = msgspec.json.decode(encoder(protocol, **options).reply(log, end))
    (choice,) = plain["choices"]
    if protocol == "chat":
        assert "".join(c["delta"].get("content", "") for c in choices) == choice["message"]["content"]
    else:
        assert "".join(c["text"] for c in choices) == choice["text"]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == [choice["finish_reason"]]
    assert not usage or chunks[-1]["usage"] == plain["usage"]
    assert not ids or [i for c in choices for i in c["token_ids"]] == choice["token_ids"]
