"""Figure 17: the least latency within a budget, over a day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.reports.batch.days import BUDGET_COLUMNS, columns, day_of
from benchmarks.reports.batch.setting import Setting
from benchmarks.reports.claims import Claim, judged
from benchmarks.reports.pictures import INK, SERIES, Picture, picture
from benchmarks.reports.sections import Section
from benchmarks.reports.steps import Results
from benchmarks.reports.tables import Table, table

Days = Mapping[tuple[str, str], dict[str, Any]]
ROUNDING = 1.0005


def section(setting: Setting, results: Results) -> Section:
    """Figure 17."""
    days = {one: day_of(results, "fig17", *one) for one in columns(setting, BUDGET_COLUMNS)}
    text = (
        (
            "The budget per request lies in the middle between vanilla Lambda's cost at the cherry-picked memory and at the "
            "largest: the paper does not say its own. Each hour is served by the plan with the least P95 within the budget for "
            "the hour before it. The paper's price, by 100 ms."
        ),
    )
    return Section(
        "fig17", "Figure 17: least latency within a budget", text, (_picture(days),), (_table(days),), tuple(_claims(days))
    )


def _picture(days: Days) -> Picture:
    count = len(days)

    def draw(panels: list[Any]) -> None:
        for column, ((day, application), found) in enumerate(days.items()):
            hours, vanilla = found["hours"], found["vanilla"]
            places = [one["hour"] for one in hours]
            first, second = panels[column], panels[count + column]
            unit_s = vanilla["largest"]["latency_s"]
            first.plot(places, [one["p95_s"] / unit_s for one in hours], color=SERIES[0], marker=".", label="BATCH")
            first.axhline(1.0, color=SERIES[1], label="vanilla, largest")
            first.axhline(
                vanilla["cherry"]["latency_s"] / unit_s, color=SERIES[2], linestyle="--", label="vanilla, cherry-picked"
            )
            first.set(title=f"{day}, {application}", ylim=(0.0, None))
            second.plot(places, [one["usd"] / found["budget_usd"] for one in hours], color=SERIES[0], marker=".")
            second.axhline(vanilla["largest"]["usd"] / found["budget_usd"], color=SERIES[1])
            second.axhline(vanilla["cherry"]["usd"] / found["budget_usd"], color=SERIES[2], linestyle="--")
            second.axhline(1.0, color=INK, linewidth=0.9)
            second.set(xlabel="hour", ylim=(0.0, None))
        panels[0].set_ylabel("P95 ÷ vanilla's, largest")
        panels[count].set_ylabel("cost ÷ budget")
        panels[0].legend(loc="lower left")

    return picture("fig17", "P95 and cost of each hour; the black line is the budget.", draw, rows=2, columns=count)


def _table(days: Days) -> Table:
    heads = (
        "day",
        "application",
        "hour",
        "budget ($ per million)",
        "cost ($ per million)",
        "P95 (ms)",
        "÷ vanilla's, largest",
        "memory (MB)",
        "B",
        "T (ms)",
    )
    rows = [
        (
            day, application, one["hour"], found["budget_usd"] * 1e6, one["usd"] * 1e6, one["p95_s"] * 1e3,
            one["p95_s"] / found["vanilla"]["largest"]["latency_s"], one["memory_mb"], one["batch"], one["timeout_s"] * 1e3,
        )
        for (day, application), found in days.items()
        for one in found["hours"]
    ]  # fmt: skip
    return table("fig17", "Each hour", heads, rows)


def _claims(days: Days) -> Iterable[Claim]:
    every = [(one, found) for found in days.values() for one in found["hours"]]
    over = [(one, share) for one, found in every if (share := one["usd"] / found["budget_usd"]) > ROUNDING]
    alone = all(one["batch"] == 1 for one, _ in over)
    yield judged(
        "Figure 17, second row",
        "BATCH always complies with the budget.",
        f"It is above the budget in {len(over)} of {len(every)} hours"
        + (f", at most by {max(share for _, share in over) - 1.0:.2%}." if over else "."),
        holds=not over,
        why="Each request is served alone, at a price that is within the budget in the mean of all measured times: that more of "
        "an hour's are beyond a step of 100 ms is chance."
        if alone
        else "A plan is made from the last hour: with fewer requests than it counted on, batches are smaller and cost more for "
        "each.",
    )
    ratios = [one["p95_s"] / found["vanilla"]["largest"]["latency_s"] for one, found in every]
    longer = sum(one > 1.0 for one in ratios)
    yield judged(
        "Figure 17, first row",
        "Keeping to the budget generally costs a longer latency than the other configurations have.",
        f"P95 is longer than vanilla Lambda's at the largest memory in {longer} of {len(ratios)} hours, by a factor of "
        f"{min(ratios):.2f} to {max(ratios):.2f}.",
        holds=longer > len(ratios) / 2,
        why="Here some memory below the largest is as quick and cheaper.",
    )
