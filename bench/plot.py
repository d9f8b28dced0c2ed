"""Throughput and time to the first token by concurrency, ours and the peers', as one picture."""

from pathlib import Path

import matplotlib as mpl
from results import Results, Spot

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

_PANELS = {"tok_s": ("output tokens per second", "linear"), "ttft_ms_p50": ("TTFT p50, ms", "log")}


def draw(results: Results, path: Path) -> bool:
    """Write the picture: medians as lines, all runs as bars; False, and no picture, without the loads for it."""
    spots = [spot for spot in results.spots() if spot.scenario == "throughput"]
    if not spots:
        return False
    figure, axes = plt.subplots(1, len(_PANELS), figsize=(11, 4.5), layout="constrained")
    for axis, (name, (label, scale)) in zip(axes, _PANELS.items(), strict=True):
        for server in dict.fromkeys(spot.server for spot in spots):
            _line(axis, results, [spot for spot in spots if spot.server == server], name)
        axis.set(xlabel="clients", ylabel=label, xscale="log", yscale=scale)
        clients = sorted({results.shape(spot)["clients"] for spot in spots})
        axis.set_xticks(clients, labels=[str(count) for count in clients], minor=False)
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.suptitle("SmolLM2-135M, 100 words in, 64 tokens out, medians with the spread of the runs")
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _line(axis: Axes, results: Results, spots: list[Spot], name: str) -> None:
    """One server; loads without the figure are left out."""
    points = []
    for spot in spots:
        values = [found for found in results.by_run(spot, name).values() if found is not None]
        middle = results.figure(spot, name)
        if middle is not None:
            points.append((results.shape(spot)["clients"], middle, middle - min(values), max(values) - middle))
    if points:
        clients, middles, below, above = zip(*points, strict=True)
        axis.errorbar(clients, middles, yerr=[below, above], marker="o", capsize=3, label=spots[0].server)
