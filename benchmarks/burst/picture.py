"""Show the runs: a table with a line per policy, and a picture with a column per policy and a row per quantity over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.burst.watch import Burst, Look
from gnomon_simulator.replay_report import SUCCESSES, Outcome, Report
from gnomon_simulator.results import percentile

BIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """The run of one policy. Times of `looks` are seconds from the run's start."""

    policy: str
    burst: Burst
    slo_s: float
    report: Report
    looks: Sequence[Look]
    reasons: Sequence[str]

    def points(self) -> list[tuple[float, float]]:
        """Intended time and latency of each request that was answered well."""
        rows = self.report.samples
        return [
            (intended, answered - intended)
            for intended, answered, outcome, status in zip(
                rows.intended_s, rows.answered_s, rows.outcome, rows.status, strict=True
            )
            if outcome == Outcome.ANSWERED and status in SUCCESSES
        ]

    def violations(self, begin_s: float = 0.0, end_s: float = math.inf) -> tuple[int, int]:
        """Of the requests in this stretch: those not answered within the objective, and all."""
        good = sum(begin_s <= at_s < end_s and latency_s <= self.slo_s for at_s, latency_s in self.points())
        asked = sum(begin_s <= at_s < end_s for at_s in self.report.samples.intended_s)
        return asked - good, asked

    def most(self, kind: str) -> int:
        """Of the instances of this kind, how many were ready at once."""
        return max((look.count(kind, "ready") for look in self.looks), default=0)

    def memory_mib_s(self) -> float:
        """Memory × time over the run."""
        pairs = zip(self.looks, self.looks[1:], strict=False)
        return sum(first.memory_mib * (second.at_s - first.at_s) for first, second in pairs)


def table(runs: Sequence[Seen]) -> str:
    """A Markdown table with one line per policy."""
    heading = (
        f"{'policy':10} {'requests':>8} {'late or refused':>16} {'in the burst':>14} {'p50 ms':>7} {'p95 ms':>7} "
        f"{'Bodies':>6} {'Shadows':>7} {'offloaded':>9} {'GiB·s':>6}"
    )
    lines = [heading]
    for run in runs:
        late, count = run.violations()
        late_in, count_in = run.violations(run.burst.before_s, run.burst.before_s + run.burst.burst_s)
        latencies = sorted(latency_s for _, latency_s in run.points())
        p50_ms, p95_ms = (1e3 * (percentile(latencies, percent) or math.nan) for percent in (50, 95))
        lines.append(
            f"{run.policy:10} {count:8d} {late:7d} = {late / max(count, 1):5.1%} {late_in:6d} of {count_in:4d} "
            f"{p50_ms:7.0f} {p95_ms:7.0f} "
            f"{run.most('body'):6d} {run.most('shadow'):7d} "
            f"{run.looks[-1].offloaded - run.looks[0].offloaded if run.looks else 0:9d} {run.memory_mib_s() / 1024:6.2f}"
        )
    return "\n".join(lines)


def draw(runs: Sequence[Seen], title: str, path: Path) -> None:
    """A PNG: arrivals, instances, batches, latencies against the objective, memory."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(5, len(runs), figsize=(5.2 * len(runs), 11), sharex=True, sharey="row", squeeze=False)
    for column, run in enumerate(runs):
        _draw_one(axes[:, column], run)
    for row, label in enumerate(("requests/s", "instances", "batch", "latency, ms", "memory, MiB")):
        axes[row][0].set_ylabel(label)
        axes[row][0].set_ylim(0, 1.1 * max(one.dataLim.ymax for one in axes[row]))
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _draw_one(axes: Any, run: Seen) -> None:
    rate, instances, batch, latency, memory = axes
    end_s = run.burst.duration_s
    bins = [index * BIN_S for index in range(math.ceil(end_s / BIN_S) + 1)]
    counts = [0.0] * (len(bins) - 1)
    for at_s in run.report.samples.intended_s:
        counts[min(int(at_s / BIN_S), len(counts) - 1)] += 1 / BIN_S
    rate.stairs(counts, bins, fill=True, color="#9db4c0")
    looks_s = [look.at_s for look in run.looks]
    _draw_instances(instances, looks_s, run)
    known = [(look.at_s, look.samples / look.batches) for look in run.looks if look.batches and look.samples]
    batch.plot([at for at, _ in known], [size for _, size in known], ".", ms=3, color="#5c6b73")
    good = [(at, 1e3 * seconds) for at, seconds in run.points() if seconds <= run.slo_s]
    bad = [(at, 1e3 * seconds) for at, seconds in run.points() if seconds > run.slo_s]
    for points, colour in ((good, "#5c8a5c"), (bad, "#b23a48")):
        latency.plot([at for at, _ in points], [ms for _, ms in points], ".", ms=3, color=colour)
    latency.axhline(1e3 * run.slo_s, color="#b23a48", lw=0.8)
    memory.plot(looks_s, [look.memory_mib for look in run.looks], color="#253237", lw=1)
    memory.set_xlabel("seconds")
    late, count = run.violations()
    rate.set_title(f"{run.policy}: {late} of {count} late or refused ({late / max(count, 1):.1%})", fontsize=10)
    for one in axes:
        one.axvspan(run.burst.before_s, run.burst.before_s + run.burst.burst_s, color="#e0a458", alpha=0.12, lw=0)
        one.set_xlim(0, end_s)


def _draw_instances(axes: Any, looks_s: Sequence[float], run: Seen) -> None:
    """Shadows as an area, Bodies as a line; dashed with those that start."""
    shadows, bodies = ([look.count(kind, "ready") for look in run.looks] for kind in ("shadow", "body"))
    axes.fill_between(looks_s, shadows, step="post", label="Shadows", color="#e0a458", alpha=0.8)
    axes.step(looks_s, bodies, where="post", label="Bodies", color="#253237")
    for kind, ready, colour in (("shadow", shadows, "#b5762a"), ("body", bodies, "#253237")):
        whole = [now + look.count(kind, "starting") for now, look in zip(ready, run.looks, strict=True)]
        axes.step(looks_s, whole, where="post", color=colour, lw=0.9, ls=":")
    axes.plot([], [], color="#5c6b73", lw=0.9, ls=":", label="with those that start")
    axes.legend(loc="best", fontsize=8)
