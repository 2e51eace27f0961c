"""Figures 2(b), 9 and 10: how the arrivals' rate moves, how closely Lambda follows it, and what planning for it costs.

Other sections take their pictures of the same arrivals from here: minute by minute around a surge, and how many requests take
longer than what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.batch_baselines import MINUTES, RATIOS, Minute, from_csv
from benchmarks.programs import RESULTS
from benchmarks.reports.batch import demand
from benchmarks.reports.batch.setting import Setting
from benchmarks.reports.report import INK, MUTED, SERIES, Claim, Picture, Results, Section, Table, judged, picture, table

MINUTE = 60
SHOWN_S = 1800
BURSTY_RATIO = 2.0
WINDOW_S = 10.0


def intensity(_: Setting, __: Results) -> Section:
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


SHOWN = 60
"""Minutes around the surge: a third of them before it."""
STEEP = 5
"""A surge is the steepest rise from the mean of so many minutes to that of the next."""
LEAST_SHARE = 1e-5
Runs = Mapping[str, Sequence[Minute]]
"""A name, and its minutes."""


def minutes(folder: Path = RESULTS) -> dict[str, dict[str, list[Minute]]]:
    """The minutes that `benchmarks.batch_baselines` kept, by case and name; empty if it has not been run."""
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


CLOSE = 0.95


def following(_: Setting, results: Results) -> Section:
    """Figure 2(b), Lambda's part."""
    found = results["fig2"]
    text = (
        (
            f"A call for each request, {found['service_s'] * 1e3:.0f} ms each (Inception-v4's place at 3,008 MB), on as many "
            "instances as there are calls at once: what unlimited instances without a start do. On AWS the first calls of a "
            "surge wait for a start besides."
        ),
    )

    def draw(panels: list[Any]) -> None:
        panels[0].plot(found["minute"], found["rate"], color=SERIES[1])
        panels[0].set(title="Twitter, requests/s", xlabel="minute", ylim=(0.0, None))
        panels[1].plot(found["minute"], found["largest"], color=SERIES[2], label="largest", linewidth=0.9)
        panels[1].plot(found["minute"], found["instances"], color=SERIES[0], label="mean")
        panels[1].set(title="Instances", xlabel="minute", ylim=(0.0, None))
        panels[1].legend(loc="lower right")

    claim = judged(
        "Figure 2(b), Section II-B",
        "The number of Lambda's instances closely follows the arrivals.",
        f"Over {len(found['minute'])} minutes, rate and mean number of instances correlate by {found['correlation']:.3f}.",
        holds=found["correlation"] >= CLOSE,
        why="They do so only where a call is short beside the minutes in which the rate moves.",
    )
    rows = list(zip(found["minute"], found["rate"], found["instances"], found["largest"], strict=True))
    tables = (table("fig2-lambda", "Each minute", ("minute", "requests/s", "instances, mean", "largest"), rows),)
    pictures = (picture("fig2-lambda", "Rate and vanilla Lambda's instances, by the minute.", draw, columns=2),)
    return Section("fig2", "Figure 2(b): Lambda follows the load", text, pictures, tables, (claim,))


HOUR_S = 3600.0
MOST_S, MOST_MB, NEGLIGIBLE = 10.0, 200.0, 0.02
SPREAD = 3.0


def planning(setting: Setting, results: Results) -> Section:
    """Figure 9."""
    found = results["fig9"]
    text: tuple[str, ...] = (
        (
            f"One process counts {len(found['hours'])} hours of Twitter second by second; at the end of each it fits a process "
            f"to the hour and predicts {found['plans']:,} plans. Memory is what is resident of that process, interpreter and "
            "numpy included; the requests themselves pass elsewhere, through the gateway."
        ),
    )
    if setting.quick:
        text = (*text, "A small space of plans: quick.")
    return Section(
        "fig9",
        "Figure 9: what planning takes",
        text,
        (_planning_picture(found),),
        (_table(found), _rates(found)),
        tuple(_planning_claims(found)),
    )


def _planning_picture(found: dict[str, Any]) -> Picture:
    hours = found["hours"]
    numbers = list(range(1, len(hours) + 1))

    def draw(panels: list[Any]) -> None:
        shares = [("counting", "counting_s", SERIES[0]), ("fitting", "fit_s", SERIES[1]), ("planning", "plan_s", SERIES[2])]
        base = [0.0] * len(hours)
        for label, key, colour in shares:
            values = [hour[key] / HOUR_S * 100.0 for hour in hours]
            panels[0].bar(numbers, values, bottom=base, color=colour, label=label, width=0.55)
            base = [low + high for low, high in zip(base, values, strict=True)]
        panels[0].set(title="Processor", xlabel="hour", ylabel="% of one core, over the hour", xticks=numbers)
        panels[0].legend()
        panels[0].set_ylim(0.0, max(base) * 1.5)
        panels[1].bar(
            [number - 0.15 for number in numbers], [row["held_mb"] for row in hours], color=SERIES[0], width=0.3, label="before"
        )
        panels[1].bar(
            [number + 0.15 for number in numbers],
            [hour["after_mb"] for hour in hours],
            color=SERIES[2],
            width=0.3,
            label="after planning",
        )
        panels[1].axhline(found["peak_mb"], color=SERIES[4], linestyle="--", label="largest")
        panels[1].set(title="Memory", xlabel="hour", ylabel="resident (MB)", xticks=numbers, ylim=(0.0, found["peak_mb"] * 1.45))
        panels[1].legend(ncols=2)

    return picture("fig9", "Processor time by what it was used for, and resident memory.", draw, columns=2)


def _table(found: dict[str, Any]) -> Table:
    heads = (
        "hour",
        "counting (CPU s)",
        "fit (CPU s)",
        "plans (CPU s)",
        "plans (s)",
        "resident before (MB)",
        "after (MB)",
        "plan",
    )
    keys = ("counting_s", "fit_s", "plan_s", "plan_wall_s", "held_mb", "after_mb", "plan")
    rows = [(number, *(hour[key] for key in keys)) for number, hour in enumerate(found["hours"], start=1)]
    return table("fig9", "Each hour", heads, rows)


def _rates(found: dict[str, Any]) -> Table:
    rows = [(float(rate), used_s) for rate, used_s in found["rates"].items()]
    return table("fig9-rates", "The same plans at very different rates", ("requests/s", "plans (CPU s)"), rows)


def _planning_claims(found: dict[str, Any]) -> Iterable[Claim]:
    longest_s = max(hour["fit_s"] + hour["plan_s"] for hour in found["hours"])
    yield judged(
        "Section V, Performance optimizer",
        "The optimal configuration is selected in less than 10 seconds on a t2.nano.",
        f"Fit and {found['plans']:,} plans take {longest_s:.2f} s of one core here at most.",
        holds=longest_s < MOST_S,
        why="Another machine.",
    )
    yield judged(
        "Figure 9(b)",
        "The largest memory is less than 200 MB.",
        f"{found['peak_mb']:.0f} MB resident at most.",
        holds=found["peak_mb"] < MOST_MB,
        why="All plans are predicted at once, from tables of all batches and timeouts.",
    )
    share = max((hour["counting_s"] + hour["fit_s"] + hour["plan_s"]) / HOUR_S for hour in found["hours"])
    yield judged(
        "Figure 9(a)",
        "Processor use is negligible.",
        f"{share:.2%} of one core over the hour, counting of arrivals included.",
        holds=share < NEGLIGIBLE,
        why="Counting arrivals takes more than planning.",
    )
    used: list[float] = list(found["rates"].values())
    yield judged(
        "Section V, Performance optimizer",
        "The time to plan depends on the number of configurations only, not on the intensity of arrivals.",
        f"From 1 to 1,000 requests/s it lies between {min(used):.2f} and {max(used):.2f} s.",
        holds=max(used) <= SPREAD * min(used),
        why="Uniformisation takes as many terms as there are arrivals within the longest timeout.",
    )
