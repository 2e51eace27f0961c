"""Figure 10: how the arrivals' rate moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.reports.batch import demand
from benchmarks.reports.batch.setting import Setting
from benchmarks.reports.claims import Claim, judged
from benchmarks.reports.pictures import SERIES, Picture, picture
from benchmarks.reports.sections import Section
from benchmarks.reports.steps import Results
from benchmarks.reports.tables import Table, table

MINUTE = 60
SHOWN_S = 1800
BURSTY_RATIO = 2.0
WINDOW_S = 10.0


def section(_: Setting, __: Results) -> Section:
    """Figure 10, from the traces alone."""
    text = (
        (
            "The MMPP(2)s are W14 and W16 of those that the authors published; the Twitter day is theirs as well, in counts per "
            "second. Of the Thruway only a MAP for each hour is published, so that its line has one point an hour: nothing is "
            "known within."
        ),
    )
    return Section(
        "fig10", "Figures 1 and 10: intensity of arrivals", text, (_picture(),), (_hours(), _processes()), tuple(_claims())
    )


def _picture() -> Picture:
    def draw(panels: list[Any]) -> None:
        for number, (name, code) in enumerate(demand.BURSTY.items()):
            process = demand.bursty(name)
            times = demand.drawn(process, int(process.rate_rps * SHOWN_S * 1.5), 10)
            rates = np.bincount(times[times < SHOWN_S].astype(int) // 5, minlength=SHOWN_S // 5) / 5.0
            panels[0].plot(np.arange(len(rates)) / 12.0, rates, color=SERIES[number], linewidth=1.0, label=f"{name} ({code})")
        panels[0].set(title="(a) MMPP(2), in 5 s", xlabel="minutes", ylabel="requests/s")
        panels[0].legend(loc="upper right")
        minutes = _minutes()
        panels[1].plot(np.arange(len(minutes)) / 60.0, minutes, color=SERIES[0], linewidth=1.0, label="Twitter, each minute")
        thruway = [demand.published("NYS", hour).rate_rps for hour in range(24)]
        panels[1].step(range(25), [*thruway, thruway[-1]], where="post", color=SERIES[1], label="NYS × 15, each hour")
        panels[1].set(title="(b) real", xlabel="hours", xticks=range(0, 25, 4))
        panels[1].legend(loc="upper left")

    return picture("fig10", "Requests per second over time.", draw, columns=2)


def _minutes() -> Any:
    counts = np.array(demand.counts())
    whole = len(counts) // MINUTE * MINUTE
    return counts[:whole].reshape(-1, MINUTE).mean(axis=1)


def _hours() -> Table:
    minutes = _minutes()
    rows = []
    for hour in range(24):
        of_hour = minutes[hour * MINUTE : (hour + 1) * MINUTE]
        whole = len(of_hour) == MINUTE
        seen = (float(of_hour.mean()), float(of_hour.max())) if whole else (None, None)
        rows.append((hour, *seen, demand.published("Twitter", hour).rate_rps, demand.published("NYS", hour).rate_rps))
    heads = ("hour", "Twitter (1/s)", "its busiest minute", "Twitter's published MAP", "NYS's published MAP (× 15)")
    return table("fig10", "Rates by the hour", heads, rows)


def _processes() -> Table:
    rows = []
    for name, code in demand.BURSTY.items():
        process = demand.bursty(name)
        rows.append((name, code, process.rate_rps, process.scv, process.autocorrelation(1), process.dispersion()))
    heads = ("process", "published as", "rate (1/s)", "SCV of gaps", "correlation of gaps, lag 1", "index of dispersion")
    return table("fig10-processes", "The MMPP(2)s", heads, rows)


def _claims() -> Iterable[Claim]:
    minutes = _minutes()
    surge = max(float(now / before) for before, now in zip(minutes[:-10], minutes[10:], strict=True))
    within = [demand.fitted("Twitter", hour).dispersion(WINDOW_S) for hour in range(0, 23, 4)]
    yield judged(
        "Figures 1 and 10, Section II-A",
        "Arrivals of inference are bursty: high peaks beside long times of low intensity.",
        f"Twitter grows by up to {surge:.1f} times within ten minutes; its busiest minute has "
        f"{minutes.max() / minutes.mean():.1f} times its mean rate. Within {WINDOW_S:g} s the fitted hours' index of dispersion "
        f"is {min(within):.2f} to {max(within):.2f} (Poisson arrivals: 1; the MMPP(2)s are in the table).",
        holds=surge >= BURSTY_RATIO,
        why="Its rate moves slowly.",
    )
