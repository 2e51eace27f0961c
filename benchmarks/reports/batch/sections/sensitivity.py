"""Figure 4: what batch, timeout and memory do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.reports.batch.sensitivity import APPLICATION, HOUR, MEMORY_BATCH, TIMEOUT_BATCH
from benchmarks.reports.batch.services import described, service_of
from benchmarks.reports.batch.setting import APPLICATIONS, LARGEST_MB, Setting
from benchmarks.reports.claims import Claim, judged
from benchmarks.reports.pictures import SERIES, Picture, picture
from benchmarks.reports.sections import Section
from benchmarks.reports.steps import Results
from benchmarks.reports.tables import Table, table

LINES = (("latency_s", "request time", SERIES[0]), ("per_s", "throughput", SERIES[2]), ("usd", "cost", SERIES[4]))
FLAT_AFTER_S, FLAT_SHARE = 0.2, 0.2
# Of each panel: the parameter, its label, a factor for it, and the title.
PANELS = (
    ("batch", "batch", "batch size", 1.0, f"(a) batch, {LARGEST_MB} MB, no timeout"),
    ("timeout", "timeout_s", "timeout (ms)", 1e3, f"(b) timeout, B ≤ {TIMEOUT_BATCH}, {LARGEST_MB} MB"),
    ("memory", "memory_mb", "memory (MB)", 1.0, f"(c) memory, B = {MEMORY_BATCH}, no timeout"),
)


def section(setting: Setting, results: Results) -> Section:
    """Figure 4."""
    found = results["fig4"]
    model = described(APPLICATIONS[APPLICATION], setting)
    text = (
        (
            f"{model} in the place of {APPLICATION}, arrivals of Twitter's hour {HOUR} ({found['rate']:.0f}/s). Each line goes "
            "from its least value (0) to its largest (1). Cost is by the paper's price, rounded up to 100 ms."
        ),
    )
    return Section(
        "fig4",
        "Figure 4: batch size, timeout and memory",
        text,
        (_picture(found),),
        tuple(_tables(found)),
        tuple(_claims(results)),
    )


def _picture(found: Mapping[str, Any]) -> Picture:
    def draw(panels: list[Any]) -> None:
        for panel, (name, parameter, label, factor, title) in zip(panels, PANELS, strict=True):
            places = [one[parameter] * factor for one in found[name]]
            for key, line, colour in LINES:
                panel.plot(
                    places, _normalised([one[key] for one in found[name]]), color=colour, label=line, marker=".", markersize=3
                )
            panel.set(title=title, xlabel=label)
        panels[0].set_ylabel("normalised (min–max)")
        panels[0].legend()

    caption = "Mean time of a request (wait and service), throughput of a busy instance, and cost of a request."
    return picture("fig4", caption, draw, columns=3)


def _tables(found: Mapping[str, Any]) -> Iterable[Table]:
    for name, parameter, label, factor, title in PANELS:
        heads = (label, "request time (ms)", "throughput (1/s)", "cost, 100 ms ($ per million)", "cost, 1 ms ($ per million)")
        rows = [
            (one[parameter] * factor, one["latency_s"] * 1e3, one["per_s"], one["usd"] * 1e6, one["usd_1ms"] * 1e6)
            for one in found[name]
        ]
        yield table(f"fig4-{name}", title, heads, rows)


def _claims(results: Results) -> Iterable[Claim]:
    found = results["fig4"]
    first, last = found["batch"][0], found["batch"][-1]
    gain, saved, grown = (
        last["per_s"] / first["per_s"] - 1.0,
        1.0 - last["usd"] / first["usd"],
        last["latency_s"] / first["latency_s"],
    )
    exact = 1.0 - last["usd_1ms"] / first["usd_1ms"]
    yield judged(
        "Figure 4(a), Section II-D",
        "With larger batches cost falls and throughput rises, and requests take longer.",
        f"From batches of 1 to {last['batch']}: throughput {gain:+.1%}, cost −{saved:.1%} billed by 100 ms (−{exact:.1%} by 1 "
        f"ms), requests take {grown:.1f} times as long.",
        holds=gain > 0.0 and saved > 0.0 and grown > 1.0,
        why="A layer program uses its core nearly as well for one request as for twenty, so that larger batches are hardly "
        "cheaper.",
    )
    share = _rest(found["timeout"])
    yield judged(
        "Figure 4(b), Section II-D",
        "The timeout's effect decreases when it is longer than 0.2 s.",
        f"Of all that the timeout changes in the time of a request, {share:.0%} is left beyond 0.2 s.",
        holds=share < FLAT_SHARE,
        why=f"At {found['rate']:.0f} requests/s a batch of {TIMEOUT_BATCH} takes "
        f"{(TIMEOUT_BATCH - 1) / found['rate'] * 1e3:.0f} ms to fill: shorter timeouts cut it off.",
    )
    costs = np.diff([one["usd"] for one in found["memory"]])
    yield judged(
        "Figure 4(c), Section II-D",
        "Cost is not monotone in memory.",
        f"Cost rises at {int((costs > 0).sum())} of {len(costs)} steps of memory and falls at {int((costs < 0).sum())}.",
        holds=bool((costs > 0).any() and (costs < 0).any()),
        why="Service times fall as memory grows, at one rate.",
    )
    yield _memory_claim(results)


def _memory_claim(results: Results) -> Claim:
    cells = {cell["batch"]: cell for cell in service_of(results, APPLICATION).cells if cell["cores"] == 1 and "peak_mb" in cell}
    says = "ResNet-v2 needs 1,280 MB for a batch of 1 and 1,664 MB, 30 % more, for one of 20."
    why = "Another framework and another model: what is resident depends on both."
    if not cells:
        return Claim("Section II-D", says, "Published profiles do not have it.", "not comparable", why)
    small, large = cells[min(cells)], cells[max(cells)]
    ratio = large["peak_mb"] / small["peak_mb"] - 1.0
    said = (
        f"{small['peak_mb']:.0f} MB resident for a batch of {small['batch']}, {large['peak_mb']:.0f} MB, {ratio:.0%} more, for "
        f"one of {large['batch']}."
    )
    return Claim("Section II-D", says, said, "not comparable", why)


def _rest(points: Sequence[Mapping[str, float]]) -> float:
    """How much of a request's time is still to change beyond 0.2 s."""
    seconds = {one["timeout_s"]: one["latency_s"] for one in points}
    whole = max(seconds.values()) - min(seconds.values())
    return abs(seconds[max(seconds)] - seconds[FLAT_AFTER_S]) / whole if whole else 0.0


def _normalised(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(one - low) / (high - low) if high > low else 0.0 for one in values]
