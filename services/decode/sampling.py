"""From a request's sampling to the engine's: every value filled in."""

from collections.abc import Mapping

from headrace.shared.engine import SamplerParams
from headrace.shared.messages import Sampling


def resolve(sampling: Sampling, defaults: Mapping[str, float], *, choice: int = 0) -> SamplerParams:
    """Fill in what the request leaves open: from `defaults` (keys of `model.default_sampling`), else neutral values."""

    def pick(value: float | None, name: str, neutral: float) -> float:
        return value if value is not None else defaults.get(name, neutral)

    return SamplerParams(
        temperature=pick(sampling.temperature, "temperature", 1.0),
        top_p=pick(sampling.top_p, "top_p", 1.0),
        top_k=int(pick(sampling.top_k, "top_k", 0)),
        min_p=pick(sampling.min_p, "min_p", 0.0),
        presence=sampling.presence,
        frequency=sampling.frequency,
        repetition=pick(sampling.repetition, "repetition", 1.0),
        logit_bias=sampling.logit_bias,
        seed=sampling.seed,
        choice=choice,
    )
