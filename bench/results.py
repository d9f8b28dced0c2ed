"""What a run of the benchmark wrote, as the reports look at it. Pure.

A record is one load of one run: `{run, server, scenario, name, shape, figures, requests}`; see `figures.summarise`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from figures import median, ratio
from sidecars import Case

Measure = Callable[["Results"], float | None]


class Spot(NamedTuple):
    """One load, wherever it was repeated."""

    server: str
    scenario: str
    name: str


@dataclass(frozen=True)
class Results:
    """One bench.json, and reports of other commands beside it."""

    document: Mapping[str, Any]
    soak: Mapping[str, Any] | None = None
    """build/soak.json."""
    quality: Mapping[str, Any] | None = None
    """build/quality.json."""
    cases: Sequence[Case] = ()
    """build/tests.xml."""

    def spots(self) -> list[Spot]:
        """Every load there is, in the order of the first run."""
        return list(dict.fromkeys(Spot(r["server"], r["scenario"], r["name"]) for r in self.document["records"]))

    def shape(self, spot: Spot) -> dict[str, Any]:
        """The load's shape."""
        return next(dict(record["shape"]) for record in self._records(spot))

    def by_run(self, spot: Spot, figure: str) -> dict[int, float | None]:
        """One figure of one load, run by run."""
        return {record["run"]: record["figures"].get(figure) for record in self._records(spot)}

    def figure(self, spot: Spot, figure: str) -> float | None:
        """The median over the runs."""
        return median(self.by_run(spot, figure).values())

    def _records(self, spot: Spot) -> list[Mapping[str, Any]]:
        return [r for r in self.document["records"] if Spot(r["server"], r["scenario"], r["name"]) == spot]


def value(figure: str, spot: Spot) -> Measure:
    """The median of a figure over the runs."""
    return lambda results: results.figure(spot, figure)


def quotient(figure: str, top: Spot, bottom: Spot, bottom_figure: str = "") -> Measure:
    """The median over the runs of a ratio taken within each: what slows a whole run down cancels out."""

    def measure(results: Results) -> float | None:
        above, below = results.by_run(top, figure), results.by_run(bottom, bottom_figure or figure)
        return median(ratio(above[run], below.get(run)) for run in above)

    return measure
