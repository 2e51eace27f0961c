"""Figure 9: what planning costs the machine that it runs on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.reports.batch.setting import Setting
from benchmarks.reports.claims import Claim, judged
from benchmarks.reports.pictures import SERIES, Picture, picture
from benchmarks.reports.sections import Section
from benchmarks.reports.steps import Results
from benchmarks.reports.tables import Table, table

HOUR_S = 3600.0
MOST_S, MOST_MB, NEGLIGIBLE = 10.0, 200.0, 0.02
SPREAD = 3.0


def section(setting: Setting, results: Results) -> Section:
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
        "fig9", "Figure 9: what planning takes", text, (_picture(found),), (_table(found), _rates(found)), tuple(_claims(found))
    )


def _picture(found: dict[str, Any]) -> Picture:
    hours = found["hours"]
    numbers = list(range(1, len(hours) + 1))

    def draw(panels: list[Any]) -> None:
        shares = [("counting", "counting_s", SERIES[0]), ("fitting", "fit_s", SERIES[1]), ("planning", "plan_s", SERIES[2])]
        base = [0.0] * len(hours)
        for label, key, colour in shares:
            values = [one[key] / HOUR_S * 100.0 for one in hours]
            panels[0].bar(numbers, values, bottom=base, color=colour, label=label, width=0.55)
            base = [low + high for low, high in zip(base, values, strict=True)]
        panels[0].set(title="Processor", xlabel="hour", ylabel="% of one core, over the hour", xticks=numbers)
        panels[0].legend()
        panels[0].set_ylim(0.0, max(base) * 1.5)
        panels[1].bar(
            [one - 0.15 for one in numbers], [one["held_mb"] for one in hours], color=SERIES[0], width=0.3, label="before"
        )
        panels[1].bar(
            [one + 0.15 for one in numbers],
            [one["after_mb"] for one in hours],
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
    rows = [(number, *(one[key] for key in keys)) for number, one in enumerate(found["hours"], start=1)]
    return table("fig9", "Each hour", heads, rows)


def _rates(found: dict[str, Any]) -> Table:
    rows = [(float(rate), used_s) for rate, used_s in found["rates"].items()]
    return table("fig9-rates", "The same plans at very different rates", ("requests/s", "plans (CPU s)"), rows)


def _claims(found: dict[str, Any]) -> Iterable[Claim]:
    longest_s = max(one["fit_s"] + one["plan_s"] for one in found["hours"])
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
    share = max((one["counting_s"] + one["fit_s"] + one["plan_s"]) / HOUR_S for one in found["hours"])
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
