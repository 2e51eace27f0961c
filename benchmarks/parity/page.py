"""The results of a run: the cells with their two sides, as figures with goals and as a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from benchmarks.parity import comparison, live
from benchmarks.parity.comparison import Side, Verdict
from benchmarks.report import Figure, interpreter, machine

BY_MODEL = ("asyfunc",)
"""Policies that decide by a model's layer blocks: their cells run the model."""
SEED = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy in one stretch."""

    stretch: str
    policy: str
    seconds: float

    @property
    def key(self) -> str:
        return f"{self.stretch}-{self.policy}-{self.seconds:g}s"

    @property
    def workload(self) -> live.Workload:
        return live.WORKLOADS["model" if self.policy in BY_MODEL else "handler"]

    def arrivals(self) -> list[float]:
        return live.arrivals(self.stretch, self.workload.peak_rps, self.seconds, SEED)


@dataclass(frozen=True, slots=True)
class Compared:
    """A cell's two sides and how far they are apart."""

    cell: Cell
    live: Side
    simulated: Side
    verdicts: Sequence[Verdict]
    lag_p99_s: float

    def to_json(self) -> dict[str, Any]:
        return {
            "stretch": self.cell.stretch,
            "policy": self.cell.policy,
            "function": self.cell.workload.name,
            "seconds": self.cell.seconds,
            "live": self.live.to_json(),
            "simulated": self.simulated.to_json(),
            "generator_lag_p99_s": self.lag_p99_s,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
        }


def figures(rows: Sequence[Compared]) -> list[Figure]:
    """How far the sides of each cell are apart, with the limit as the goal."""
    return [
        Figure(
            f"{row.cell.stretch}, {row.cell.policy}: {verdict.name}",
            verdict.apart,
            verdict.unit,
            verdict.limit,
            "<=",
            "met" if verdict.within else "missed",
            f"{row.cell.seconds:g} s, once; live {verdict.live:.4g}, simulated {verdict.simulated:.4g}",
        )
        for row in rows
        for verdict in row.verdicts
    ]


HEAD = """# The live system beside the simulator

Each cell is one stretch of load under one policy, run once on a real `gnomon serve` and simulated with the same profile,
arrivals and settings. `make parity` makes this page again and goes on where it was; `benchmarks/parity` has the method.

- Machine: {machine}
- Python: {python}
- Made: {made} UTC
- Cells: {cells}, {seconds:g} s of load each; nothing is repeated and nothing is chosen{short}
- Verdicts: {met} of {count} within
- Profiles: `{handler}` by the run's own step: {latency}; an instance starts in {start_ms:.0f} ms. `{model}` by `gnomon models
  profile`

`{handler}` sleeps for most of its time, so that eight of its instances fit on a machine of fewer cores; its node is declared to
have eight (`gnomon serve --cores 8`). `asyfunc` needs a model's layer blocks and runs `{model}` on the machine's own cores, which
the gateway and the load generator use too. A model's profile has its execution alone: the transfer of its tensors (600 kB a
request) and what else uses these cores at the time are in no profile.

Within means: late by at most {late:g} points, mean and p95 by {relative:g} %, memory × time by {memory:g} %, and {equal:g} % of
the seconds with equal decisions (Bodies, cores of a Body, Shadows). A pair is live / simulated. Latencies count from sending;
the lag is the 99th percentile of the generator's own delay.

| stretch | policy | requests | late (%) | mean (ms) | p95 (ms) | memory (GB·s) | equal decisions (%) | not within | lag (ms) |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
BURST = """
## One live burst with and without Shadows

`{model}`, objective {slo_ms:.0f} ms, at most 2 Bodies, each run once; `asyfunc-` is `asyfunc` without Shadows. In the burst
{late_with} of {count_with} requests were late or refused with Shadows, {late_without} of {count_without} without: Shadows saved
{saved}.

| policy | late or refused | of | in the burst | of | Bodies | Shadows | offloaded samples | memory (GiB·s) |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def page(
    rows: Sequence[Compared], bursts: Sequence[Mapping[str, Any]], profile: Mapping[str, Any], seconds: float, whole_s: float
) -> str:
    """The page; `profile` is the handler's document, `whole_s` the length that a cell should have."""
    verdicts = [verdict for row in rows for verdict in row.verdicts]
    head = HEAD.format(
        machine=machine(),
        python=interpreter(),
        made=datetime.now(UTC).isoformat(sep=" ", timespec="minutes")[:16],
        cells=len(rows),
        seconds=seconds,
        short="" if seconds >= whole_s else f". This is a short run: {whole_s:g} s a cell are the measure",
        met=sum(verdict.within for verdict in verdicts),
        count=len(verdicts),
        handler=live.HANDLER,
        latency=", ".join(f"{1e3 * taken_s:.0f} ms for {batch}" for batch, taken_s in profile["latency_s"]["1"].items()),
        start_ms=1e3 * profile["load_s"],
        model=live.MODEL,
        late=comparison.LATE_POINTS,
        relative=comparison.LATENCY_PERCENT,
        memory=comparison.MEMORY_PERCENT,
        equal=comparison.EQUAL_PERCENT,
    )
    return head + "".join(map(_line, rows)) + (_burst(bursts) if bursts else "")


def _line(row: Compared) -> str:
    ours, theirs = row.live, row.simulated
    missed = [verdict.name for verdict in row.verdicts if not verdict.within]
    cells = (
        row.cell.stretch,
        row.cell.policy,
        f"{ours.requests}",
        f"{100 * ours.late:.2f} / {100 * theirs.late:.2f}",
        f"{1e3 * ours.mean_s:.0f} / {1e3 * theirs.mean_s:.0f}",
        f"{1e3 * ours.p95_s:.0f} / {1e3 * theirs.p95_s:.0f}",
        f"{ours.memory_gb_s:.2f} / {theirs.memory_gb_s:.2f}",
        f"{100.0 * comparison.equal_share(ours.decided, theirs.decided):.1f}",
        ", ".join(missed) or "–",
        f"{1e3 * row.lag_p99_s:.1f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _burst(bursts: Sequence[Mapping[str, Any]]) -> str:
    """Say how many requests Shadows saved, above the table of both runs."""
    with_them, without = bursts
    head = BURST.format(
        model=live.BURST_MODEL,
        slo_ms=with_them["slo_ms"],
        late_with=with_them["late_in_burst"],
        count_with=with_them["requests_in_burst"],
        late_without=without["late_in_burst"],
        count_without=without["requests_in_burst"],
        saved=without["late_in_burst"] - with_them["late_in_burst"],
    )
    return head + "".join(
        f"| {burst['policy']} | {burst['late']} | {burst['requests']} | {burst['late_in_burst']} | "
        f"{burst['requests_in_burst']} | {burst['bodies']} | {burst['shadows']} | "
        f"{burst['offloaded']} | {burst['memory_gib_s']:.1f} |\n"
        for burst in bursts
    )
