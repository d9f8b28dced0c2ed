"""The rendering environment, in this process."""

import time

import pytest
from jinja2.exceptions import SecurityError, TemplateSyntaxError, UndefinedError

from headrace.shared.text.template import ChatTemplate, RefusedError, Renderable


def render(source: str, **variables: object) -> str:
    return Renderable(ChatTemplate(source, {"bos_token": "<s>"}), 10_000).render(variables)


def test_json_is_plain_and_keeps_the_order_of_keys():
    value = {"z": "<é>&", "a": 1}

    assert render("{{ v | tojson }}", v=value) == '{"z": "<é>&", "a": 1}'
    assert render("{{ v | tojson(indent=2, sort_keys=true) }}", v=value) == '{\n  "a": 1,\n  "z": "<é>&"\n}'


def test_blocks_take_their_line_with_them():
    assert render("{% for x in [1, 2] %}\n    {{ x }}\n    {% endfor %}") == "    1\n    2\n"


def test_loops_may_break_and_continue():
    skip, leave = "{% if x == 2 %}{% continue %}{% endif %}", "{% if x == 4 %}{% break %}{% endif %}"

    assert render("{% for x in [1, 2, 3, 4] %}" + skip + leave + "{{ x }}{% endfor %}") == "13"


def test_generation_blocks_render_their_body():
    assert render("a{% generation %}{{ bos_token }}{% endgeneration %}b") == "a<s>b"


def test_a_refusal_carries_the_templates_words():
    with pytest.raises(RefusedError, match="no system, please"):
        render("{{ raise_exception('no system, please') }}")


def test_the_clock_stands_still_for_a_day():
    now = time.gmtime()

    assert render("{{ strftime_now('%H:%M:%S') }}") == "00:00:00"
    assert render("{{ strftime_now('%Y') }}") in {str(now.tm_year), str(now.tm_year + 1)}


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ dict.mro() }}", "{{ m.append(1) }}"])
def test_what_leads_out_of_the_sandbox_is_refused(source):
    with pytest.raises(SecurityError):
        render(source, m=[])


def test_huge_ranges_are_refused():
    with pytest.raises(OverflowError):
        render("{% for x in range(1000000000) %}{% endfor %}")


def test_too_much_text_is_refused():
    with pytest.raises(ValueError, match="10000 characters"):
        render("{% for x in range(2000) %}123456{% endfor %}")


def test_unknown_names_fail_only_when_used():
    assert render("{{ 'on' if enable_thinking is defined else 'off' }}") == "off"
    with pytest.raises(UndefinedError):
        render("{{ a.b.c }}")


def test_a_broken_template_does_not_compile():
    with pytest.raises(TemplateSyntaxError):
        render("{% if %}")
