"""The scripted model: what it plays, when, and how it breaks on request."""

import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from headrace.shared.engine import SamplerParams, SequenceSpec, StepError
from headrace.shared.engine.scripted import EOS, ScriptedEngine, extra_tokens
from headrace.shared.messages import Script, ScriptStep
from headrace.shared.packing import pack_ids

STOPS = frozenset({EOS})


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def faults():
    return []


@pytest.fixture
def engine(clock, faults):
    return ScriptedEngine(block_tokens=4, max_context=256, clock=clock, fault=faults.append)


def spec_of(*steps, name="a", max_new=100, repeat=False, **fields):
    script = Script(choices=(steps,), repeat=repeat)
    return SequenceSpec(id=name, prompt=(1, 2, 3), max_new=max_new, script=script, stop_ids=STOPS, **fields)


def play(engine, spec):
    """Tokens and cause of a sequence that never pauses."""
    engine.add(spec)
    tokens, cause = [], None
    while engine.has_work():
        for output in engine.step():
            tokens += output.tokens
            cause = output.cause or cause
    engine.release(spec.id)
    return tokens, cause


def test_steps_play_in_order_and_eos_ends(engine):
    steps = (ScriptStep(text="Hello"), ScriptStep(ids=(65, 258)), ScriptStep(text=" world"), ScriptStep(eos=True))

    assert play(engine, spec_of(*steps)) == ([1000, 65, 258, 1002, EOS], "eos")


def test_a_script_without_an_end_is_ended(engine):
    assert play(engine, spec_of(ScriptStep(ids=(65, 66)))) == ([65, 66, EOS], "eos")
    assert play(engine, spec_of()) == ([EOS], "eos")


def test_where_eos_is_no_stop_it_is_a_token_like_others(engine):
    spec = replace(
        spec_of(ScriptStep(ids=(65,)), ScriptStep(eos=True), ScriptStep(ids=(66,)), max_new=5), stop_ids=frozenset()
    )

    assert play(engine, spec) == ([65, EOS, 66, EOS, EOS], "length")


def test_repeat_plays_the_same_ids_until_the_limit(engine):
    spec = spec_of(ScriptStep(text="a"), ScriptStep(text="b"), max_new=7, repeat=True)

    assert play(engine, spec) == ([1000, 1001, 1000, 1001, 1000, 1001, 1000], "length")


def test_without_a_script_the_alphabet_comes_at_once(engine):
    engine.add(SequenceSpec(id="a", prompt=(1,), max_new=30))

    (output,) = engine.step()

    assert bytes(output.tokens) == b"abcdefghijklmnopqrstuvwxyzabcd"
    assert output.cause == "length"


def test_no_step_gives_more_than_64_tokens(engine):
    engine.add(SequenceSpec(id="a", prompt=(1,), max_new=200))

    assert [len(engine.step()[0].tokens) for _ in range(4)] == [64, 64, 64, 8]


def test_each_choice_plays_its_own_list(engine):
    script = Script(choices=((ScriptStep(text="x"),), (ScriptStep(ids=(7,)), ScriptStep(text="y"))))
    spec = SequenceSpec(id="a", prompt=(1,), max_new=9, script=script, stop_ids=STOPS)

    played = [play(engine, replace(spec, sampling=SamplerParams(choice=choice)))[0] for choice in range(3)]

    assert played == [[1000, EOS], [7, 1001, EOS], [1000, EOS]]
    assert [extra_tokens(script, choice) for choice in range(3)] == [{1000: b"x"}, {1001: b"y"}, {1000: b"x"}]


def test_extra_tokens_are_the_texts_in_utf8():
    script = Script(choices=((ScriptStep(text="né"), ScriptStep(pause_ms=1), ScriptStep(text="")),))

    assert extra_tokens(script, 0) == {1000: "né".encode(), 1002: b""}
    assert extra_tokens(Script(show_prompt=True), 0) == {}


def test_show_prompt_quotes_the_prompt_whatever_it_holds(engine):
    spec = SequenceSpec(id="a", prompt=(256, 72, EOS, 73), max_new=9, script=Script(show_prompt=True), stop_ids=STOPS)

    assert play(engine, spec) == ([256, 72, EOS, 73, EOS], "eos")


def test_a_pause_holds_one_sequence_back_and_no_other(engine, clock):
    engine.add(spec_of(ScriptStep(ids=(65,)), ScriptStep(pause_ms=500), ScriptStep(ids=(66,)), name="slow"))
    engine.add(spec_of(ScriptStep(ids=(67,)), name="fast", max_new=200, repeat=True))
    given = {"slow": [], "fast": []}

    for _ in range(3):
        for output in engine.step():
            given[output.id] += output.tokens

    assert given["slow"] == [65]
    assert len(given["fast"]) == 192


def test_while_all_pause_there_is_no_work_until_the_first_is_due(engine, clock):
    engine.add(spec_of(ScriptStep(pause_ms=500), ScriptStep(ids=(65,)), name="a"))
    engine.add(spec_of(ScriptStep(pause_ms=200), ScriptStep(ids=(66,)), name="b"))

    assert engine.next_due() is None
    assert engine.step() == []
    assert (engine.has_work(), engine.next_due()) == (False, 100.2)
    assert engine.step() == []

    clock.now = 100.2
    assert engine.has_work()
    assert [(output.id, output.tokens) for output in engine.step()] == [("b", (66, EOS))]
    assert (engine.has_work(), engine.next_due()) == (False, 100.5)
    engine.release("a")
    assert (engine.has_work(), engine.next_due()) == (False, None)


def test_every_pause_lasts_its_own_time(engine, clock):
    engine.add(spec_of(ScriptStep(pause_ms=125), ScriptStep(ids=(65,)), ScriptStep(pause_ms=250), max_new=9))
    engine.step()
    clock.now = 100.125
    assert [output.tokens for output in engine.step()] == [(65,)]

    assert engine.step() == []
    assert (engine.has_work(), engine.next_due()) == (False, 100.375)
    clock.now = 100.375
    assert [output.tokens for output in engine.step()] == [(EOS,)]


def test_a_sequence_that_arrives_while_others_pause_is_work(engine):
    engine.add(spec_of(ScriptStep(pause_ms=500), name="a"))
    engine.step()

    engine.add(spec_of(ScriptStep(ids=(65,)), name="b"))

    assert (engine.has_work(), engine.next_due()) == (True, None)
    assert [output.id for output in engine.step()] == ["b"]


def test_random_tokens_are_printable_and_never_twice_the_same(engine):
    spec = spec_of(ScriptStep(random=80))

    first, _ = play(engine, spec)
    second, _ = play(engine, spec)

    assert bytes(first[:80]).isascii()
    assert bytes(first[:80]).decode().isprintable()
    assert (len(first), len(second)) == (81, 81)
    assert first != second


STEPS = (
    ScriptStep(text="Hi"),
    ScriptStep(pause_ms=0),
    ScriptStep(ids=(65, 66, 67)),
    ScriptStep(random=3),
    ScriptStep(fault="raise", attempts=0),
    ScriptStep(text="!"),
)


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("done", range(9))
def test_a_resumed_script_goes_on_behind_what_was_given(engine, repeat, done):
    spec = spec_of(*STEPS, max_new=20, repeat=repeat)
    whole, _ = play(engine, spec)

    rest, _ = play(engine, replace(spec, generated=tuple(whole[:done])))

    resumed = whole[:done] + rest
    drawn = {index for index in range(20) if index % 8 in (4, 5, 6)}
    assert len(resumed) == len(whole)
    assert [t for i, t in enumerate(resumed) if i not in drawn] == [t for i, t in enumerate(whole) if i not in drawn]


def test_a_fault_comes_after_what_stands_before_it(engine, faults):
    engine.add(spec_of(ScriptStep(ids=(65, 66)), ScriptStep(fault="exit"), ScriptStep(ids=(67,))))

    assert [output.tokens for output in engine.step()] == [(65, 66)]
    assert faults == []
    engine.step()
    assert faults == ["exit"]


def test_a_fault_spares_later_attempts(engine, faults):
    spec = spec_of(ScriptStep(ids=(65,)), ScriptStep(fault="hang", attempts=2), ScriptStep(ids=(66,)), generated=(65,))

    assert play(engine, replace(spec, attempt=3)) == ([66, EOS], "eos")
    engine.add(replace(spec, attempt=2))
    engine.step()
    assert faults == ["hang"]


def test_a_raise_takes_one_sequence_and_no_token_of_the_others(engine):
    engine.add(spec_of(ScriptStep(ids=(65, 66, 67)), name="good"))
    engine.add(spec_of(ScriptStep(fault="raise"), name="bad"))

    with pytest.raises(StepError) as caught:
        engine.step()

    assert caught.value.id == "bad"
    assert [(output.id, output.tokens) for output in engine.step()] == [("good", (65, 66, 67, EOS))]
    engine.release("bad")
    engine.release("good")
    engine.check()
    assert engine.pressure().used_blocks == 0


def test_exit_ends_the_process_with_nine():
    code = (
        "from headrace.shared.engine import SequenceSpec\n"
        "from headrace.shared.engine.scripted import ScriptedEngine\n"
        "from headrace.shared.messages import Script, ScriptStep\n"
        "engine = ScriptedEngine()\n"
        "script = Script(choices=((ScriptStep(fault='exit'),),))\n"
        "engine.add(SequenceSpec(id='a', prompt=(1,), max_new=9, script=script))\n"
        "engine.step()\n"
    )

    assert subprocess.run([sys.executable, "-P", "-c", code], timeout=30, check=False).returncode == 9


def test_hang_never_comes_back():
    engine = ScriptedEngine()
    engine.add(spec_of(ScriptStep(fault="hang")))
    came_back = threading.Event()

    thread = threading.Thread(target=lambda: (engine.step(), came_back.set()), daemon=True)
    thread.start()

    assert not came_back.wait(0.2)
    assert thread.is_alive()


def test_prefill_plays_nothing_and_breaks_on_nothing(engine, faults):
    spec = replace(spec_of(ScriptStep(fault="exit")), prompt=tuple(range(9)), max_new=0)
    engine.add(spec)

    (output,) = engine.step()

    assert (output.tokens, output.num_computed, output.cause, faults) == ((), 8, "length", [])


def test_a_block_is_its_packed_ids_and_another_prompt_is_refused(engine):
    prompt = tuple(range(10, 19))
    engine.add(replace(spec_of(), prompt=prompt))
    engine.step()

    payloads = engine.export("a", 0, 2)

    assert payloads == [pack_ids(prompt[:4]), pack_ids(prompt[4:8])]
    with pytest.raises(ValueError, match="other tokens"):
        engine.add(replace(spec_of(name="b"), prompt=prompt[::-1]), payloads)
    with pytest.raises(ValueError, match="other tokens"):
        engine.add(replace(spec_of(name="b"), prompt=prompt), payloads[1:])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(choices=((ScriptStep(),),)), "exactly one"),
        (Script(choices=((ScriptStep(text="x", eos=True),),)), "exactly one"),
        (Script(choices=((ScriptStep(ids=(262,)),),)), "vocabulary"),
        (Script(choices=((ScriptStep(pause_ms=-1),),)), "negative"),
        (Script(choices=((ScriptStep(random=-1),),)), "negative"),
        (Script(choices=((ScriptStep(pause_ms=1),),), repeat=True), "without ever"),
        (Script(choices=((ScriptStep(ids=()),),), repeat=True), "without ever"),
        (Script(choices=((ScriptStep(text="x"),),), show_prompt=True), "show_prompt"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused(engine, script, reason):
    with pytest.raises(ValueError, match=reason):
        engine.add(SequenceSpec(id="a", prompt=(1,), max_new=9, script=script))


def test_plumbing_is_not_slowed_down_by_the_model():
    """64 sequences side by side: the aim is above a million tokens a second; a tenth of it fails on no machine."""
    engine = ScriptedEngine()
    steps = tuple(ScriptStep(text=str(i)) for i in range(100))
    for i in range(64):
        engine.add(spec_of(*steps, name=str(i), max_new=3000, repeat=True))
    began = time.perf_counter()

    num_tokens = 0
    while engine.has_work():
        num_tokens += sum(len(output.tokens) for output in engine.step())

    assert num_tokens == 64 * 3000
    assert num_tokens / (time.perf_counter() - began) > 100_000


def test_the_scripted_engine_loads_no_torch():
    probe = "import headrace.shared.engine.scripted, sys; print({'torch', 'numpy'} & set(sys.modules))"

    result = subprocess.run([sys.executable, "-P", "-c", probe], capture_output=True, text=True, timeout=30, check=True)

    assert result.stdout.strip() == "set()"
