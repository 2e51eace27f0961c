"""The accuracy of predictions: figures 12 and 13, figure 4 (batch, timeout and memory), figure 11 and the regression.

Figure 11 and the regression ask whether service is deterministic, and whether a few measured cells predict the others.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.programs import ROOT
from benchmarks.reports.batch.demand import ASIDE, ATOM
from benchmarks.reports.batch.predictions import APPLICATION, HOUR, MEMORY_BATCH, PERCENTS, REAL, SYNTHETIC, TIMEOUT_BATCH, chosen
from benchmarks.reports.batch.services import CORES, Service, described, service_of
from benchmarks.reports.batch.setting import APPLICATIONS, LARGEST_MB, Setting
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

Cases = Sequence[tuple[str, str, int, int, float]]
Found = Mapping[str, dict[str, Any]]
KINDS = ("exact", "printed", "poisson", "measured")
GOALS = {"fig12": 0.09, "fig13": 0.08}


def synthetic(setting: Setting, results: Results) -> Section:
    """Figure 12."""
    text = (
        "Two bursty MMPP(2)s (10 or 120 requests/s for 20 s in the mean, and 10 or 200/s for 100 s), the process known.",
        (
            "What happened comes from every batch of a long run whose service times vary as the measured ones did; no requests "
            "went to AWS. The prediction takes service for deterministic, as the paper does, unless it is said. Errors are of "
            f"time; where F, within {ASIDE:.1%} of the predicted time, is within {ATOM} of the percentile, the error counts as "
            "none."
        ),
    )
    return _section("fig12", "Figure 12: latency under MMPP(2) arrivals", text, _cases(setting, results, "fig12", SYNTHETIC))


def real(setting: Setting, results: Results) -> Section:
    """Figure 13."""
    text = (
        (
            "Three hours of Twitter, replayed, against the MAP fitted to the counts of the same hour, known beforehand as in "
            "the paper; and three of the NYS Thruway, for which there are only the published MAPs: their arrivals are drawn "
            "from them, and predicted by what is fitted to the drawn arrivals."
        ),
    )
    return _section("fig13", "Figure 13: latency under arrivals of real traces", text, _cases(setting, results, "fig13", REAL))


def _cases(setting: Setting, results: Results, figure: str, cases: Cases) -> Found:
    """The result of each panel by its name."""
    return {
        f"{arrivals}, {application}, {memory_mb} MB": results[f"{figure}-{number}"]
        for number, (arrivals, application, memory_mb, _, _) in enumerate(chosen(setting, cases), start=1)
    }


def _section(figure: str, title: str, text: tuple[str, ...], found: Found) -> Section:
    return Section(figure, title, text, (_picture(figure, found),), (_table(figure, found),), tuple(_claims(figure, found)))


def _picture(figure: str, found: Found) -> Picture:
    columns = min(3, len(found))

    def draw(panels: list[Any]) -> None:
        for panel, (name, case) in zip(panels, found.items(), strict=False):
            times_ms = np.array(case["grid_s"]) * 1e3
            panel.plot(times_ms, case["happened"], color=INK, linewidth=2.4, alpha=0.35, label="happened")
            panel.plot(times_ms, case["predicted"]["exact"], color=SERIES[0], label="exact")
            panel.plot(times_ms, case["predicted"]["measured"], color=SERIES[2], linewidth=1.0, label="exact, measured times")
            panel.plot(times_ms, case["predicted"]["printed"], color=SERIES[1], linestyle="--", label="as printed")
            panel.plot(times_ms, case["predicted"]["poisson"], color=SERIES[3], linestyle=":", label="measured times, Poisson")
            title = f"{name}\nB = {case['batch']}, T = {case['timeout_s'] * 1e3:g} ms"
            panel.set(title=title, xlabel="latency (ms)", ylim=(0.0, 1.02))
        panels[0].legend(loc="lower right")

    caption = (
        "Share of requests within a latency: what happened (grey), the exact prediction, the paper's printed equations, and "
        "what Poisson arrivals of the same rate would have."
    )
    return picture(figure, caption, draw, rows=-(-len(found) // columns), columns=columns)


def _table(figure: str, found: Found) -> Table:
    heads = ["case", "B", "T (ms)", "requests"]
    for percent in PERCENTS:
        heads += [f"P{percent:g} (ms)", *(f"P{percent:g}, {kind}" for kind in KINDS)]
    rows = []
    for name, case in found.items():
        row: list[str | int | float] = [name, case["batch"], case["timeout_s"] * 1e3, case["requests"]]
        for place in range(len(PERCENTS)):
            row += [case["happened_s"][place] * 1e3, *(case["off"][kind][place] for kind in KINDS)]
        rows.append(row)
    return table(figure, "Percentiles that happened, and how far each prediction is off (relative)", heads, rows)


def _claims(figure: str, found: Found) -> Iterable[Claim]:
    goal = GOALS[figure]
    worst = {name: _worst(found.values(), name) for name in KINDS}
    means = {name: _mean(found.values(), name) for name in KINDS}
    of = f"of {len(found) * len(PERCENTS)} percentiles (P50, P90, P95, P99 of {len(found)} cases)"
    said = "consistently less than 9 %" if figure == "fig12" else "consistently smaller than 8 %, with Twitter and NYS arrivals"
    where = "Figure 12, Section VI-C" if figure == "fig12" else "Figure 13, Section VI-C"
    ratio = max(float(case["ratio"]) for case in found.values())
    yield judged(
        where,
        f"The model's error is {said}.",
        f"With the exact distribution, service taken for deterministic, the worst {of} is {worst['exact']:.1%} off, on average "
        f"{means['exact']:.1%}.",
        holds=worst["exact"] < goal,
        why=f"Service is not deterministic on this machine: one run in a hundred takes up to {ratio:.1f} times the median. With "
        "the measured times in the place of medians see the next claim.",
    )
    yield judged(
        f"{where}, with the service times that were measured",
        f"The model's error is {said}.",
        f"With the exact distribution and all measured times, the worst {of} is {worst['measured']:.1%} off, on average "
        f"{means['measured']:.1%}. What happened is drawn from these same times: "
        "this tests the mathematics, not the machine.",
        holds=worst["measured"] < goal,
        why="The run is too short for bursts of minutes." if figure == "fig12" else "The MAP fitted to an hour is not the hour.",
    )
    apart = [
        abs(printed / exact - 1.0)
        for case in found.values()
        for printed, exact in zip(case["predicted_s"]["printed"], case["predicted_s"]["exact"], strict=True)
    ]
    yield judged(
        f"{where}, Eqs. 4–16 as printed",
        f"The printed equations have an error {said}.",
        f"The worst {of} is {worst['printed']:.0%} off, on average {means['printed']:.1%}. Beside the exact distribution of the "
        f"same deterministic times, so that the machine has no part in it, the worst is {max(apart):.0%} off, on average "
        f"{np.mean(apart):.1%}.",
        holds=worst["printed"] < goal,
        why="Service varies here, as above; besides, the equations take waits for uniform, cut the last requests' waits off at "
        "S_B + τ, and guess the phase at a batch's first request (decision 19 has an example of each).",
    )
    yield judged(
        f"Observation 1; {where}",
        "Where burstiness is not part of the model, its predictions plummet.",
        f"With all measured times and Poisson arrivals of that rate the worst {of} is {worst['poisson']:.0%} off, on average "
        f"{means['poisson']:.1%}.",
        holds=worst["poisson"] > goal,
        why="Within a batch's timeout these hours are nearly Poisson arrivals; what varies is the rate, over minutes.",
    )


def _worst(cases: Iterable[Mapping[str, Any]], kind: str) -> float:
    return max(abs(float(value)) for case in cases for value in case["off"][kind])


def _mean(cases: Iterable[Mapping[str, Any]], kind: str) -> float:
    return float(np.mean([abs(value) for case in cases for value in case["off"][kind]]))


LINES = (("latency_s", "request time", SERIES[0]), ("per_s", "throughput", SERIES[2]), ("usd", "cost", SERIES[4]))
FLAT_AFTER_S, FLAT_SHARE = 0.2, 0.2
# Of each panel: the parameter, its label, a factor for it, and the title.
PANELS = (
    ("batch", "batch", "batch size", 1.0, f"(a) batch, {LARGEST_MB} MB, no timeout"),
    ("timeout", "timeout_s", "timeout (ms)", 1e3, f"(b) timeout, B ≤ {TIMEOUT_BATCH}, {LARGEST_MB} MB"),
    ("memory", "memory_mb", "memory (MB)", 1.0, f"(c) memory, B = {MEMORY_BATCH}, no timeout"),
)


def sensitivity(setting: Setting, results: Results) -> Section:
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
        (_sensitivity_picture(found),),
        tuple(_tables(found)),
        tuple(_sensitivity_claims(results)),
    )


def _sensitivity_picture(found: Mapping[str, Any]) -> Picture:
    def draw(panels: list[Any]) -> None:
        for panel, (name, parameter, label, factor, title) in zip(panels, PANELS, strict=True):
            places = [point[parameter] * factor for point in found[name]]
            for key, line, colour in LINES:
                panel.plot(
                    places, _normalised([point[key] for point in found[name]]), color=colour, label=line, marker=".", markersize=3
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
            (row[parameter] * factor, row["latency_s"] * 1e3, row["per_s"], row["usd"] * 1e6, row["usd_1ms"] * 1e6)
            for row in found[name]
        ]
        yield table(f"fig4-{name}", title, heads, rows)


def _sensitivity_claims(results: Results) -> Iterable[Claim]:
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
    costs = np.diff([row["usd"] for row in found["memory"]])
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
    """The share of the latency's range that lies beyond a timeout of 0.2 s."""
    seconds = {point["timeout_s"]: point["latency_s"] for point in points}
    whole = max(seconds.values()) - min(seconds.values())
    return abs(seconds[max(seconds)] - seconds[FLAT_AFTER_S]) / whole if whole else 0.0


def _normalised(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


LARGEST_CV = 0.1
GOAL = 0.02
QUARTILES = 1.349  # between the quartiles of a normal distribution lie so many of its deviations


def service_times(setting: Setting, results: Results) -> Section:
    """Figure 11 and Section VI-B."""
    found = {name: service_of(results, name) for name in APPLICATIONS}
    profiles, regression = _profiles(), Measured("regression")
    text = (
        (
            "The coefficient of variation of a batch's service time, over runs of one program on so many cores. Published "
            "profiles say the same of another day: theirs come from the distance of quartiles, with 10 to 40 runs a cell."
        ),
        "In the places of the paper's: "
        + ", ".join(
            f"{described(application, setting)} for {application.name}"
            for application in APPLICATIONS.values()
            if application.stands_in or setting.quick
        )
        + ".",
    )
    tables = [_service_times_table(found), _profile_table(profiles)]
    if regression.there:
        tables.append(regression.table("regression", "The regression, as benchmarks.regression measured it"))
    title = "Figure 11 and Section VI-B: service times, and their regression"
    claims = (*_service_times_claims(found, profiles), regressed(regression))
    return Section("fig11", title, text, (_service_times_picture(found, setting),), tuple(tables), claims)


def _cv(cell: Mapping[str, Any]) -> float:
    seconds: list[float] = cell["seconds"]
    return statistics.stdev(seconds) / statistics.fmean(seconds)


def _service_times_picture(found: Mapping[str, Service], setting: Setting) -> Picture:
    def draw(panels: list[Any]) -> None:
        for number, (name, service) in enumerate(found.items()):
            for cores, line in zip(CORES, ("-", "--"), strict=True):
                cells = sorted((cell["batch"], cell) for cell in service.cells if cell["cores"] == cores)
                label = name if cores == 1 else None
                places = [batch for batch, _ in cells]
                panels[0].plot(places, [_cv(cell) for _, cell in cells], line, color=SERIES[number], marker=".", label=label)
                each_ms = [statistics.median(cell["seconds"]) / batch * 1e3 for batch, cell in cells]
                panels[1].plot(places, each_ms, line, color=SERIES[number], marker=".", label=label)
        panels[0].axhline(LARGEST_CV, color=SERIES[4], linewidth=1.0)
        panels[0].set(title="Coefficient of variation", xlabel="batch size", ylabel="CV", ylim=(0.0, None))
        panels[1].set(title="Time for each request of a batch", xlabel="batch size", ylabel="ms", yscale="log")
        panels[0].legend(loc="upper right")

    about = "published profiles" if setting.quick else "measured here"
    return picture("fig11", f"One core (solid) and two (dashed), {about}; the line at 0.1 is the paper's bound.", draw, columns=2)


def _service_times_table(found: Mapping[str, Service]) -> Table:
    rows = [
        (
            name,
            cell["cores"],
            cell["batch"],
            len(cell["seconds"]),
            statistics.median(cell["seconds"]) * 1e3,
            _cv(cell),
            cell.get("peak_mb"),
        )
        for name, service in found.items()
        for cell in service.cells
    ]
    heads = ("application", "cores", "batch", "runs", "median (ms)", "CV", "largest resident (MB)")
    return table("fig11", "Service times", heads, rows)


def _profiles() -> dict[str, dict[str, float]]:
    """The deviation of each cell of the published profiles, from its quartiles."""
    found = {}
    for path in sorted((ROOT / "profiles").glob("*.json")):
        spread = json.loads(path.read_text(encoding="utf-8"))["spread"]
        found[path.stem] = {cell: value / QUARTILES for cell, value in spread.items()}
    return found


def _profile_table(profiles: Mapping[str, Mapping[str, float]]) -> Table:
    rows = [(name, len(cells), statistics.median(cells.values()), max(cells.values())) for name, cells in profiles.items()]
    return table("fig11-profiles", "The published profiles", ("model", "cells", "median CV", "largest CV"), rows)


def _service_times_claims(found: Mapping[str, Service], profiles: Mapping[str, Mapping[str, float]]) -> Iterable[Claim]:
    cells = [(_cv(cell), name, cell) for name, service in found.items() for cell in service.cells]
    worst, name, cell = max(cells, key=lambda cell: cell[0])
    of_profiles = [value for profile in profiles.values() for value in profile.values()]
    below = sum(cell[0] < LARGEST_CV for cell in cells)
    yield judged(
        "Figure 11, Section VI-B",
        "Service is deterministic: its CV is always smaller than 0.1.",
        f"{below} of {len(cells)} cells have a CV below 0.1; the largest is {worst:.3f} ({name}, {cell['cores']} core(s), batch "
        f"{cell['batch']}), the median {statistics.median(cell[0] for cell in cells):.3f}. Published profiles: at most "
        f"{max(of_profiles):.3f} in {len(of_profiles)} cells.",
        holds=worst < LARGEST_CV,
        why="The machine is shared with whatever else runs on it, and with other guests of its host: single runs are late.",
    )


def regressed(regression: Measured) -> Claim:
    """The accuracy with which few cells predict the others, from that benchmark's document alone."""
    says = "Trained on less than 3 % of the configurations, the regression's mean absolute error on the others is less than 2 %."
    if not regression.there:
        return unmeasured("Section VI-B", says, regression.command)
    errors = [
        figure for figure in regression.figures if figure["goal"] is not None and "error" in figure["key"]
    ] or regression.having("error")
    said = "; ".join(f"{error['key']} {error['value']:.2%}" for error in errors)
    return judged(
        "Section VI-B",
        says,
        f"{said}.",
        holds=bool(errors) and all(error["value"] <= GOAL for error in errors),
        why="; ".join(str(error["detail"]) for error in errors if error["value"] > GOAL),
    )
