"""Rendering in a child process: limits, faults and recovery."""

import os
import signal
import time

import pytest

from headrace.shared.text.renderer import Renderer, TemplateFaultError, TemplateRefusedError
from headrace.shared.text.template import ChatTemplate

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TIMEOUT_S = 0.3


@pytest.fixture
def renderer():
    """Make a renderer; closed at the end."""
    made = []

    def make(source: str, timeout_s: float = TIMEOUT_S) -> Renderer:
        made.append(Renderer(ChatTemplate(source, {}), timeout_s))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_values_survive_the_trip(renderer):
    values = {"text": "讲🙂\u2028", "list": [1, 2.5, None, True], "deep": {"a": [{}]}}

    assert renderer("{{ v | tojson }}", 5).render({"v": values}) == (
        '{"text": "讲🙂\u2028", "list": [1, 2.5, null, true], "deep": {"a": [{}]}}'
    )


@pytest.mark.parametrize(
    "body",
    [LOOPS, "{{ 'a' * (bad * 10 ** 11) }}", "{{ 3 ** (bad * 9 ** 9) }}"],
    ids=["loops", "memory", "one long operation"],
)
def test_a_runaway_template_ends_within_its_limit_and_the_next_call_works(renderer, body):
    template = renderer("{% if bad %}" + body + "{% else %}fine{% endif %}")
    assert template.render({"bad": False}) == "fine"
    started = time.monotonic()

    with pytest.raises(TemplateFaultError):
        template.render({"bad": True})

    assert time.monotonic() - started < TIMEOUT_S + 2
    assert template.render({"bad": False}) == "fine"


def test_a_runaway_constant_is_stopped_while_compiling(renderer):
    with pytest.raises(TemplateFaultError, match="limits"):
        renderer("{{ 3 ** (9 ** 9) }}").render({})


def test_a_template_that_does_not_compile_says_why(renderer):
    with pytest.raises(TemplateFaultError, match="TemplateSyntaxError"):
        renderer("{% if %}").render({})


def test_a_refusal_carries_the_templates_words_alone(renderer):
    with pytest.raises(TemplateRefusedError, match=r"^roles must alternate$"):
        renderer("{{ raise_exception('roles must alternate') }}", 5).render({})


def test_a_fault_leaves_the_child_in_place(renderer):
    template = renderer("{{ a + 1 }}", 5)

    with pytest.raises(TemplateFaultError, match="TypeError"):
        template.render({"a": "x"})

    assert template.render({"a": 1}) == "2"


def test_a_child_killed_while_idle_is_replaced_unnoticed(renderer):
    template = renderer("ok", 5)
    template.render({})

    os.kill(template._child._process.pid, signal.SIGKILL)

    assert template.render({}) == "ok"


def test_values_that_cannot_travel_are_a_fault(renderer):
    with pytest.raises(TemplateFaultError, match="encoded"):
        renderer("ok", 5).render({"a": 2**70})


def test_close_ends_the_child(renderer):
    template = renderer("ok", 5)
    template.render({})
    process = template._child._process

    template.close()

    assert process.returncode is not None
