"""Pictures of who serves the same arrivals: minute by minute around a surge, and how many requests take longer than what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.batch_baselines.__main__ import MINUTES
from benchmarks.batch_baselines.minutes import RATIOS, Minute, from_csv
from benchmarks.report import RESULTS
from benchmarks.reports.pictures import INK, MUTED, Picture, picture

SHOWN = 60
"""Minutes around the surge: a third of them before it."""
STEEP = 5
"""A surge is the steepest rise from the mean of so many minutes to that of the next."""
LEAST_SHARE = 1e-5
Runs = Mapping[str, Sequence[Minute]]
"""Who, and how it went for them."""


def minutes(folder: Path = RESULTS) -> dict[str, dict[str, list[Minute]]]:
    """What `benchmarks.batch_baselines` has kept of every minute, by case and name; empty where it has not been run."""
    path = folder / MINUTES
    found: dict[str, dict[str, list[Minute]]] = {}
    for (case, name), each in (from_csv(path.read_text(encoding="utf-8")) if path.exists() else {}).items():
        found.setdefault(case, {})[name] = each
    return found


def around_surge(rates_rps: Sequence[float]) -> range:
    """The minutes that are shown: `SHOWN` of them with the steepest rise in their first half; all where there are no more."""
    if len(rates_rps) <= SHOWN:
        return range(len(rates_rps))

    def rise(at: int) -> float:
        return sum(rates_rps[at : at + STEEP]) - sum(rates_rps[at - STEEP : at])

    surge = max(range(STEEP, len(rates_rps) - STEEP + 1), key=rise)
    first = min(max(0, surge - SHOWN // 3), len(rates_rps) - SHOWN)
    return range(first, first + SHOWN)


def over_time(name: str, caption: str, runs: Runs, slo_s: float, colours: Mapping[str, str]) -> Picture:
    """Arrivals, P99 against the SLO, and instances, one below the other."""
    shown = around_surge([minute.rate_rps for minute in next(iter(runs.values()))])

    def draw(panels: list[Any]) -> None:
        rate, latency, instances = panels
        first = next(iter(runs.values()))
        rate.step(shown, [first[at].rate_rps for at in shown], where="mid", color=MUTED)
        for who, of_minutes in runs.items():
            p99_s = [of_minutes[at].p99_s for at in shown]
            # Without an answer there is no latency: the line has a gap there.
            p99_ms = [float("nan") if each is None else each * 1e3 for each in p99_s]
            latency.plot(shown, p99_ms, color=colours[who], marker=".", markersize=2.5, linewidth=1.0, label=who)
            instances.step(shown, [of_minutes[at].instances for at in shown], where="mid", color=colours[who], linewidth=1.0)
        latency.axhline(slo_s * 1e3, color=INK, linewidth=0.9)
        latency.set(yscale="log")
        latency.legend(loc="upper left", ncols=len(runs))
        rate.set(title="Arrivals", ylabel="requests/s", ylim=(0.0, None))
        latency.set(title="P99 of each minute; the line is the SLO", ylabel="ms")
        instances.set(title="Machines held, or calls under way", ylabel="instances", xlabel="minute", ylim=(0.0, None))

    return picture(name, caption, draw, rows=3)


def exceeding(name: str, caption: str, cases: Mapping[str, Mapping[str, Sequence[float]]], colours: Mapping[str, str]) -> Picture:
    """The share of the requests that take longer than each multiple of the SLO, a panel for each case."""

    def draw(panels: list[Any]) -> None:
        for panel, (case, by_name) in zip(panels, cases.items(), strict=True):
            for who, ccdf in by_name.items():
                shares = [max(share, LEAST_SHARE) for share in ccdf]
                panel.semilogy(RATIOS, shares, color=colours[who], label=who, linewidth=1.2)
            panel.axvline(1.0, color=INK, linewidth=0.9)
            panel.set(title=case, xlabel="latency ÷ SLO", ylim=(LEAST_SHARE, 1.5), xlim=(0.0, RATIOS[-1]))
        panels[0].set_ylabel("share above")
        panels[0].legend(loc="upper right")

    return picture(name, caption, draw, columns=len(cases))
