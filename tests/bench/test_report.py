"""Tables and the document they are written into."""

import pytest
from report import BEGIN, END, markdown, number, replace_results, table
from scenarios import SCENARIOS


def test_a_table_is_markdown():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --: |\n| 1 | 2 |"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (12345.6, "12,346"), (45.67, "45.7"), (0.513, "0.51"), (0.0021, "0.0021"), (3, "3")],
)
def test_numbers_keep_the_digits_that_mean_something(value, text):
    assert number(value) == text


def test_only_what_stands_between_the_markers_changes():
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"

    written = replace_results(text, "new\n")

    assert written == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replace_results(written, "new\n") == written


def test_a_document_without_markers_is_refused():
    with pytest.raises(ValueError, match="results: begin"):
        replace_results("text", "new")


def test_a_report_names_its_command_and_shows_each_load(make_results):
    text = markdown(make_results(("headrace", "plumbing", "tokens", {"tok_s": [9000.0]}), scenarios=["plumbing"]))

    assert "`make bench` on 2000-01-01 at commit abc" in text
    assert "| plumbing tokens | headrace | 16 | 100 | 64 | 9,000 |" in text


def test_a_full_run_shows_targets_without_a_measurement_and_a_partial_one_leaves_them_out(make_results):
    load = ("headrace, scripted", "plumbing", "tokens", {"tok_s": [9000.0, 9500.0, 9400.0]})

    partial = markdown(make_results(load, scenarios=["plumbing"]))
    full = markdown(make_results(load, scenarios=list(SCENARIOS)))

    assert "| ≥ 10,000 tok/s | 9,400 tok/s | **no** |" in partial
    assert "not measured" not in partial
    assert "| ≥ 2 × | – | not measured |" in full


def test_a_server_that_did_not_start_is_named(make_results):
    results = make_results()
    results.document["problems"].append("run 1: vllm ended with 1\nand much more")

    assert "- not measured: run 1: vllm ended with 1\n" in markdown(results)
