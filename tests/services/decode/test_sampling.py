from headrace.decode.sampling import resolve
from headrace.shared.engine import SamplerParams
from headrace.shared.messages import Sampling

RECOMMENDED = {"temperature": 0.2, "top_p": 0.9, "top_k": 50.0, "min_p": 0.05, "repetition": 1.1}


def test_without_any_word_everything_is_neutral() -> None:
    assert resolve(Sampling(), {}) == SamplerParams()


def test_what_a_request_leaves_open_comes_from_the_defaults() -> None:
    params = resolve(Sampling(), RECOMMENDED)

    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.repetition) == (
        0.2,
        0.9,
        50,
        0.05,
        1.1,
    )
    assert isinstance(params.top_k, int)


def test_a_request_wins_over_the_defaults_also_with_zero() -> None:
    params = resolve(Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition=1.0), RECOMMENDED)

    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.repetition) == (0.0, 1.0, 0, 0.0, 1.0)


def test_seed_choice_penalties_and_biases_pass_through() -> None:
    params = resolve(Sampling(seed=9, presence=0.5, frequency=-0.5, logit_bias={3: -100.0}), {}, choice=2)

    assert (params.seed, params.choice) == (9, 2)
    assert (params.presence, params.frequency) == (0.5, -0.5)
    assert params.logit_bias == {3: -100.0}
