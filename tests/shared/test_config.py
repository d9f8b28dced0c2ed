"""Configuration: what wins, what is refused and by which words, and that it survives being handed over."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.shared import config as configuration
from headrace.shared.config import Config
from headrace.shared.errors import ConfigError
from headrace.shared.settings import dump, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headrace.yaml"


def _load(*sets: str, file: Path | None = None, **environ: str) -> Config:
    return load(str(file) if file else None, sets, environ)


def test_defaults_hold_where_nothing_is_said():
    config = _load()

    assert config.up.port == 8080
    assert config.up.host == "127.0.0.1"
    assert config.model.names == ("smollm2-135m-instruct",)


def test_file_environment_and_set_win_in_this_order(file):
    file.write_text("decode: {slots: 2, chunk_tokens: 3, max_attempts: 4}\n")

    config = _load(
        "decode.max_attempts=9", file=file, HEADRACE_DECODE__CHUNK_TOKENS="5", HEADRACE_DECODE__MAX_ATTEMPTS="6"
    )

    assert (config.decode.slots, config.decode.chunk_tokens, config.decode.max_attempts) == (2, 5, 9)


def test_the_last_set_wins():
    assert _load("up.port=1", "up.port=2").up.port == 2


@pytest.mark.parametrize(
    ("sets", "environ", "words"),
    [
        (["up.prot=1"], {}, "unknown key 'up.prot'"),
        (["upp.port=1"], {}, "unknown key 'upp.port'"),
        (["port=1"], {}, "unknown key 'port'"),
        ([], {"HEADRACE_UP__PROT": "1"}, "environment HEADRACE_UP__PROT: unknown key 'up.prot'"),
        ([], {"HEADRACE_UPP__PORT": "1"}, "environment HEADRACE_UPP__PORT: unknown key 'upp.port'"),
        (["up.port"], {}, "--set up.port: expected key=value"),
        (["up.port=x"], {}, "up.port: Expected `int`"),
        (["up.port=70000"], {}, "up.port: "),
        (["decode.slots=0"], {}, "decode.slots: "),
        (["timeouts.queue_s=-1"], {}, "timeouts.queue_s: "),
        (["engine.profile=int8"], {}, "engine.profile: "),
        (["engine.kv_bytes=-1"], {}, "engine: kv_bytes"),
        (["model.names=[]"], {}, "model: names must hold at least one model"),
        (["model.default_sampling={heat: 1}"], {}, "default_sampling has no key 'heat'"),
        (["up.workers={decoder: 1}"], {}, "up: workers: unknown stage 'decoder'"),
        (["up.workers={decode: -1}"], {}, "up: workers: decode=-1"),
        (["up.workers={decode: 2"], {}, "--set up.workers={decode: 2"),
    ],
)
def test_what_is_wrong_is_refused_by_name(sets, environ, words):
    with pytest.raises(ConfigError) as caught:
        load(None, sets, environ)

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("upp: {}", "unknown key 'upp'"),
        ("up: {prot: 1}", "unknown key 'up.prot'"),
        ("up: 3", "room 'up' must hold keys"),
        ("[1, 2]", "expected rooms at the top level"),
        ("up: {port: [}", "configuration file"),
        ("up: {host: 7.5}", "up.host: "),
        ("\x00", "configuration file"),
    ],
)
def test_a_wrong_file_is_refused_by_name(file, text, words):
    file.write_text(text)

    with pytest.raises(ConfigError) as caught:
        _load(file=file)

    assert words in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        _load(file=tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "up:\n", "up: {}\n"])
def test_an_empty_file_or_room_changes_nothing(file, text):
    file.write_text(text)

    assert _load(file=file) == _load()


def test_off_is_a_word_and_true_a_boolean(file):
    file.write_text("cache: {url: off}\nengine: {deterministic: true}\n")

    config = _load(file=file)

    assert config.cache.url == "off"
    assert config.engine.deterministic is True


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("model.names=scripted", ("scripted",)),
        ("model.names=scripted, gemma3-270m", ("scripted", "gemma3-270m")),
        ('model.names=["/a,b", "c"]', ("/a,b", "c")),
    ],
)
def test_model_names_are_a_list_or_words_with_commas(setting, names):
    assert _load(setting).model.names == names


@pytest.mark.parametrize("value", ["", "1", "null", "a: b", "'x'", "#x", "redis://u:p@h:1/0"])
def test_a_text_setting_is_taken_literally(value):
    assert _load(f"cache.url={value}").cache.url == value


def test_variables_of_other_kinds_are_left_alone():
    assert _load(HEADRACE_WID="decode-1", HEADRACE_URL="http://x", HEADRACE_MODELS_DIR="/m", PATH="/bin") == _load()


@settings(deadline=None)
@given(
    st.builds(
        Config,
        up=st.builds(
            configuration.Up,
            host=st.text(),
            port=st.integers(0, 65535),
            workers=st.dictionaries(st.sampled_from(["decode", "ingress"]), st.integers(0, 9)),
            restart_backoff_s=st.floats(1e-7, 1e9),
        ),
        cache=st.builds(configuration.Cache, url=st.text() | st.sampled_from(["off", "yes", "1", "~", "null"])),
        model=st.builds(
            configuration.Model,
            names=st.lists(st.text(), min_size=1).map(tuple),
            default_sampling=st.dictionaries(st.just("top_p"), st.floats(0, 1)),
        ),
        decode=st.builds(configuration.Decode, profile=st.sampled_from([None, "w8a8"])),
    )
)
def test_a_dumped_configuration_loads_as_the_same(tmp_path_factory, config):
    file = tmp_path_factory.mktemp("dump") / "config.yaml"
    file.write_text(dump(config), "utf-8")

    assert load(str(file), environ={}) == config
