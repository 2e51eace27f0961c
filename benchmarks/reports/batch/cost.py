"""A day's plans: the least cost within an SLO (figures 14 and 15), and the least latency within a budget (figure 17)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.reports.batch.days import (
    BILLINGS,
    BUDGET_COLUMNS,
    COST_COLUMNS,
    LOOSE_BATCH,
    RATIOS,
    SLACK,
    STRICT,
    columns,
    day_of,
)
from benchmarks.reports.batch.services import described
from benchmarks.reports.batch.setting import APPLICATIONS, Setting
from benchmarks.reports.report import (
    INK,
    SERIES,
    Claim,
    Measured,
    Picture,
    Results,
    Section,
    Table,
    judged,
    picture,
    table,
    unmeasured,
)

NEAR = 0.1
HALF = 0.45
Days = Mapping[tuple[str, str], dict[str, Any]]


def cheapest(setting: Setting, results: Results) -> Section:
    """Figure 14."""
    days = {column: day_of(results, "fig14", *column) for column in columns(setting, COST_COLUMNS)}
    now = {column: day_of(results, "fig14", *column, "x86") for column in columns(setting, COST_COLUMNS)}
    twitter = Measured("twitter_day")
    text = (
        (
            f"ResNet-v2 ({described(APPLICATIONS['ResNet-v2'], setting)}) with an SLO of {SLACK} times what a batch of "
            f"{LOOSE_BATCH} takes at the largest memory, {STRICT} with a strict one of {SLACK} times what one request takes "
            "there: the paper does not say its SLOs. Each hour is served by the cheapest of "
            f"{next(iter(days.values()))['plans']:,} plans for the hour before it, P95 within the SLO, with service times that "
            "vary as the measured ones do, which the paper takes for deterministic; its requests then pass the buffer event by "
            "event. The NYS columns are drawn from the published MAPs."
        ),
        (
            "Costs are by the paper's price, durations rounded up to 100 ms; the table has today's price by 1 ms beside it. "
            "SageMaker's and MArk's cost, and the distribution of their latencies, are in the last section."
        ),
    )
    tables = [_summary(days, now), _hours("fig14-hours", days)]
    claims = [*_claims(days, now)]
    if twitter.there:
        tables.append(
            twitter.table(
                "twitter-day", "The Twitter day, planned anew hourly and at changes, as benchmarks.twitter_day measured it"
            )
        )
    claims.append(replanned(twitter))
    return Section("fig14", "Figure 14: least cost within an SLO", text, (_picture(days),), tuple(tables), tuple(claims))


def parameters(setting: Setting, results: Results) -> Section:
    """Figure 15."""
    day = day_of(results, "fig14", "NYS", "ResNet-v2")
    hours = day["hours"]
    model = described(APPLICATIONS["ResNet-v2"], setting)
    text = (f"What was chosen in each hour of Figure 14's first column, {model} under the NYS Thruway.",)

    def draw(panels: list[Any]) -> None:
        places = [hour["hour"] for hour in hours]
        panels[0].step(places, [hour["batch"] for hour in hours], where="mid", color=SERIES[1], label="largest batch")
        panels[0].step(places, [hour["mean_batch"] for hour in hours], where="mid", color=SERIES[0], label="effective batch")
        panels[0].legend()
        panels[1].step(places, [hour["timeout_s"] * 1e3 for hour in hours], where="mid", color=SERIES[2])
        panels[2].step(places, [hour["memory_mb"] for hour in hours], where="mid", color=SERIES[3])
        for panel, title in zip(panels, ("Batch size", "Timeout (ms)", "Memory (MB)"), strict=True):
            panel.set(title=title, xlabel="hour", ylim=(0.0, None))

    low, high = min(hour["mean_batch"] for hour in hours), max(hour["mean_batch"] for hour in hours)
    kinds = {name: len({hour[name] for hour in hours}) for name in ("batch", "timeout_s", "memory_mb")}
    claim = judged(
        "Figure 15, Section VI-D",
        "Batch size, timeout and memory change dynamically with the load; the effective batch size varies from 6 to 13.",
        f"In {len(hours)} hours the number of different largest batches is {kinds['batch']}, of timeouts {kinds['timeout_s']}, "
        f"of memory sizes {kinds['memory_mb']}; the effective batch size varies from {low:.1f} to {high:.1f}.",
        holds=min(kinds.values()) > 1 and high > low * 1.2,
        why="Here a batch saves fees, and what is lost by rounding up to 100 ms (Figure 4), rather than time: the batch and "
        "memory that fill their last 100 ms best are the cheapest at every rate, and only the timeout follows the load.",
    )
    pictures = (picture("fig15", "The plan of each hour.", draw, columns=3),)
    return Section(
        "fig15", "Figure 15: what the plans choose", text, pictures, (_hours("fig15", {("NYS", "ResNet-v2"): day}),), (claim,)
    )


def _picture(days: Days) -> Picture:
    count = len(days)

    def draw(panels: list[Any]) -> None:
        for column, ((day, application), found) in enumerate(days.items()):
            hours = found["hours"]
            first, second, third = (panels[row * count + column] for row in range(3))
            slo_s = found["slo_s"]
            first.plot(
                [hour["hour"] for hour in hours],
                [hour["p95_s"] / slo_s for hour in hours],
                color=SERIES[0],
                marker=".",
                label="BATCH",
            )
            first.axhline(found["vanilla"]["largest"]["latency_s"] / slo_s, color=SERIES[1], label="vanilla, largest")
            first.axhline(
                found["vanilla"]["cherry"]["latency_s"] / slo_s, color=SERIES[2], linestyle="--", label="vanilla, cherry-picked"
            )
            first.axhline(1.0, color=INK, linewidth=0.9)
            first.set(title=f"{day}, {application}", xlabel="hour", ylim=(0.0, None))
            second.semilogy(RATIOS, [max(value, 1e-6) for value in found["ccdf"]], color=SERIES[0])
            second.axvline(1.0, color=INK, linewidth=0.9)
            second.axhline(0.05, color=INK, linewidth=0.9, linestyle=":")
            second.set(xlabel="latency ÷ SLO", ylim=(1e-5, 1.2), xlim=(0.0, 2.0))
            third.bar(range(3), _relative(found), color=[SERIES[1], SERIES[2], SERIES[0]], width=0.6)
            third.set_xticks(range(3), ["largest", "cherry", "BATCH"])
        for row, label in enumerate(("P95 ÷ SLO", "share above", "cost ÷ vanilla's")):
            panels[row * count].set_ylabel(label)
        panels[0].legend(loc="lower left")

    caption = (
        "P95 of each hour, the distribution of the whole day's latencies, and the day's cost relative to vanilla Lambda's at "
        "its largest memory."
    )
    return picture("fig14", caption, draw, rows=3, columns=count)


def _relative(found: Mapping[str, Any]) -> list[float]:
    largest = found["vanilla"]["largest"]["usd"]
    return [1.0, found["vanilla"]["cherry"]["usd"] / largest, found["usd"] / largest]


def _late(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [hour for hour in found["hours"] if hour["p95_s"] > found["slo_s"]]


def _summary(days: Days, now: Days) -> Table:
    rows: list[tuple[str | float | int, ...]] = []
    for price, of_price in zip(BILLINGS, (days, now), strict=True):
        for (day, application), found in of_price.items():
            worst = max(hour["p95_s"] for hour in found["hours"]) / found["slo_s"]
            met = len(found["hours"]) - len(_late(found))
            _, cherry, batch = _relative(found)
            rows.append(
                (
                    BILLINGS[price],
                    day,
                    application,
                    found["slo_s"] * 1e3,
                    f"{met} of {len(found['hours'])}",
                    worst,
                    found["usd"] * 1e6,
                    batch,
                    batch / cherry,
                )
            )
    heads = (
        "billing", "day", "application", "SLO (ms)", "hours within", "worst P95 ÷ SLO", "BATCH ($ per million)",
        "÷ vanilla, largest", "÷ vanilla, cherry-picked",
    )  # fmt: skip
    return table("fig14", "Each day", heads, rows)


def _hours(name: str, days: Days) -> Table:
    heads = (
        "day",
        "application",
        "hour",
        "requests",
        "memory (MB)",
        "B",
        "T (ms)",
        "mean batch",
        "P95 predicted (ms)",
        "P95 (ms)",
        "$ per million",
    )
    rows = [
        (
            day, application, hour["hour"], hour["requests"], hour["memory_mb"], hour["batch"], hour["timeout_s"] * 1e3,
            hour["mean_batch"], hour["predicted_s"] * 1e3, hour["p95_s"] * 1e3, hour["usd"] * 1e6,
        )
        for (day, application), found in days.items()
        for hour in found["hours"]
    ]  # fmt: skip
    return table(name, "Each hour", heads, rows)


def _claims(days: Days, now: Days) -> Iterable[Claim]:
    late = {f"{day} {application}": _late(found) for (day, application), found in days.items()}
    hours = sum(len(found["hours"]) for found in days.values())
    worst = max(hour["p95_s"] / found["slo_s"] for found in days.values() for hour in found["hours"])
    yield judged(
        "Figure 14, first row",
        "BATCH is the only approach that always keeps P95 close to the SLO without violating it.",
        f"P95 is above the SLO in {sum(len(late_hours) for late_hours in late.values())} of {hours} hours "
        f"({', '.join(f'{name}: {len(late_hours)}' for name, late_hours in late.items())}), at most by {worst - 1.0:.1%}.",
        holds=not any(late.values()),
        why=_reasons(days),
    )
    saved = {name: 1.0 - _relative(found)[2] for name, found in days.items()}
    against = {name: _relative(found)[2] / _relative(found)[1] - 1.0 for name, found in days.items()}
    listed = ", ".join(
        f"{day} {application}: −{saved[day, application]:.0%} ({against[day, application]:+.1%})" for day, application in days
    )
    yield judged(
        "Figure 14, third row",
        "BATCH always has the least cost.",
        f"Against vanilla Lambda at the largest memory (and at the cherry-picked): {listed}.",
        holds=all(value > 0.0 for value in saved.values()) and all(value <= 0.001 for value in against.values()),
        why="Where batches hardly help, a plan within a strict SLO needs more memory than the cheapest one, which nobody holds "
        "to the SLO.",
    )
    loose = [saved[name] for name in days if name[1] != STRICT]
    today = [1.0 - _relative(now[name])[2] for name in days if name[1] != STRICT]
    yield judged(
        "Section VIII",
        "BATCH decreases the cost by 50 %.",
        f"Where batches are allowed, by {_span(loose)} of vanilla's at the largest memory; billed by 1 ms, by {_span(today)}.",
        holds=max(loose) >= HALF,
        why="In TensorFlow 1 on Lambda a batch of ten took far less than ten times one request; a layer program on one core "
        "takes nearly ten times, so that a batch saves little more than fees and rounding.",
    )
    strict = [against[name] for name in days if name[1] == STRICT]
    if strict:
        yield judged(
            f"Figure 14, columns 2 and 4 ({STRICT})",
            "With a strict SLO, BATCH and vanilla Lambda at the cherry-picked memory have similar cost.",
            f"BATCH's differs by {min(strict):+.1%} to {max(strict):+.1%}.",
            holds=max(abs(value) for value in strict) <= NEAR,
            why="The cherry-picked memory is the cheapest whatever it takes; the SLO asks BATCH for more.",
        )


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.0%}", f"{max(values):.0%}"
    return low if low == high else f"{low} to {high}"


def _reasons(days: Days) -> str:
    """The reasons why P95 was above the SLO."""
    late = [(hour, found) for found in days.values() for hour in _late(found)]
    alone = sum(hour["batch"] == 1 for hour, _ in late)
    said = []
    if alone:
        said.append(
            f"In {alone} of them each request is served alone: the mean of the measured times from P92.5 to P97.5, which "
            "stands for P95 in a plan, is within the SLO, and more than one run in twenty is later than that."
        )
    if alone < len(late):
        said.append(
            f"In {len(late) - alone} the rate had moved since the hour that the plan was made from: the cheapest plan uses all "
            "that the SLO allows. The last claim has what planning anew at changes does."
        )
    return " ".join(said)


def replanned(twitter: Measured) -> Claim:
    """The effect of planning anew at changes, from that benchmark's document."""
    says = "BATCH keeps the SLO while the load changes (sliding window of an hour)."
    if not twitter.there:
        return unmeasured("Section VI-D, planned anew at changes", says, twitter.command)
    kept, hourly = (twitter.having(f"{mode}: hours met") for mode in ("on_change", "hourly"))
    costs = [row["value"] for row in twitter.having("on_change: cost")]
    hours = len(twitter.document["cases"][0]["hours"])
    missed = [row for row in kept if row["met"] != "met"]
    return judged(
        "Section VI-D, planned anew at changes",
        says,
        f"{len(kept)} cases (service times, SLOs, calls or instances that are paid for), {hours} hours of Twitter each: planned "
        f"anew at changes, P95 is within the SLO in at least {min(row['value'] for row in kept):.0f} hours, at {min(costs):.2f} "
        f"to {max(costs):.2f} times the cost of each hour's cheapest plan in hindsight; planned by the hour, in at least "
        f"{min(row['value'] for row in hourly):.0f} hours.",
        holds=not missed,
        why="; ".join(f"{row['key']}: {row['detail']}" for row in missed),
    )


ROUNDING = 1.0005


def budget(setting: Setting, results: Results) -> Section:
    """Figure 17."""
    days = {column: day_of(results, "fig17", *column) for column in columns(setting, BUDGET_COLUMNS)}
    text = (
        (
            "The budget per request lies in the middle between vanilla Lambda's cost at the cherry-picked memory and at the "
            "largest: the paper does not say its own. Each hour is served by the plan with the least P95 within the budget for "
            "the hour before it. The paper's price, by 100 ms."
        ),
    )
    return Section(
        "fig17",
        "Figure 17: least latency within a budget",
        text,
        (_budget_picture(days),),
        (_table(days),),
        tuple(_budget_claims(days)),
    )


def _budget_picture(days: Days) -> Picture:
    count = len(days)

    def draw(panels: list[Any]) -> None:
        for column, ((day, application), found) in enumerate(days.items()):
            hours, vanilla = found["hours"], found["vanilla"]
            places = [hour["hour"] for hour in hours]
            first, second = panels[column], panels[count + column]
            unit_s = vanilla["largest"]["latency_s"]
            first.plot(places, [hour["p95_s"] / unit_s for hour in hours], color=SERIES[0], marker=".", label="BATCH")
            first.axhline(1.0, color=SERIES[1], label="vanilla, largest")
            first.axhline(
                vanilla["cherry"]["latency_s"] / unit_s, color=SERIES[2], linestyle="--", label="vanilla, cherry-picked"
            )
            first.set(title=f"{day}, {application}", ylim=(0.0, None))
            second.plot(places, [hour["usd"] / found["budget_usd"] for hour in hours], color=SERIES[0], marker=".")
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
            day, application, hour["hour"], found["budget_usd"] * 1e6, hour["usd"] * 1e6, hour["p95_s"] * 1e3,
            hour["p95_s"] / found["vanilla"]["largest"]["latency_s"], hour["memory_mb"], hour["batch"], hour["timeout_s"] * 1e3,
        )
        for (day, application), found in days.items()
        for hour in found["hours"]
    ]  # fmt: skip
    return table("fig17", "Each hour", heads, rows)


def _budget_claims(days: Days) -> Iterable[Claim]:
    every = [(hour, found) for found in days.values() for hour in found["hours"]]
    over = [(hour, share) for hour, found in every if (share := hour["usd"] / found["budget_usd"]) > ROUNDING]
    alone = all(hour["batch"] == 1 for hour, _ in over)
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
    ratios = [hour["p95_s"] / found["vanilla"]["largest"]["latency_s"] for hour, found in every]
    longer = sum(ratio > 1.0 for ratio in ratios)
    yield judged(
        "Figure 17, first row",
        "Keeping to the budget generally costs a longer latency than the other configurations have.",
        f"P95 is longer than vanilla Lambda's at the largest memory in {longer} of {len(ratios)} hours, by a factor of "
        f"{min(ratios):.2f} to {max(ratios):.2f}.",
        holds=longer > len(ratios) / 2,
        why="Here some memory below the largest is as quick and cheaper.",
    )
