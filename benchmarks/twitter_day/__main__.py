"""BATCH's Twitter day: does the policy `batch` meet its percentile, and what does it cost beside the cheapest plan of each hour?

    python -m benchmarks.twitter_day [--quick] [--afresh] [--only TEXT]

22 full hours, each with a history before it; three objectives on Lambda and three with held instances (`cases`). For each: the
policy's day, replanned hourly and on change, and the same replanned hourly only (`days`); and the cheapest fixed plan of every
hour, by those who know the hour (`hindsight`). All times are virtual; the same seed gives the same figures on every machine.

It takes about an hour on one core. What is done is kept in .cache/benchmarks until the code that decides it changes:
interrupted, the same command goes on from there. --quick does two hours of two cases; --only takes the cases whose key holds a
text, and writes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.programs import ended_well, pace_of, pace_parser, step
from benchmarks.report import Kept, table, write
from benchmarks.twitter_day import days
from benchmarks.twitter_day.days import CASES, HOURS, Case, of_hour
from benchmarks.twitter_day.judged import document_of, figures_of

BUFFER = ("planner/gnomon_planner/validation.py", "planner/gnomon_planner/plans.py")
HERE = "benchmarks/twitter_day/"
DAY_SOURCES = (*BUFFER, "planner", "autoscaler/gnomon_autoscaler/policies/batch", f"{HERE}days.py")
HINDSIGHT_SOURCES = (*BUFFER, f"{HERE}days.py")


def day_of(case: Case, mode: str, hours: Sequence[int], kept: Kept) -> list[dict[str, Any]]:
    """The policy's day, from what was kept as far as it is there."""
    parts: list[days.Followed] = []
    for hour in range(hours[-1] + 1):
        key = f"{case.key}, {mode}, hour {hour}"
        found = kept.get(key)
        if found is None:
            found = asdict(days.followed(case, mode, hour, parts[-1] if parts else None))
            kept.keep(key, found)
            step(f"{key}: {len(found['planned_s'])} plans")
        parts.append(days.Followed(**found))
    return [asdict(each) for each in days.hours(case, parts, hours)]


def cheapest_of(case: Case, hours: Sequence[int], kept: Kept) -> list[dict[str, Any]]:
    """The cheapest plan of each hour, from what was kept as far as it is there."""
    found = []
    for hour in hours:
        key = f"{case.key}, hour {hour}"
        plan = kept.get(key)
        if plan is None:
            step(f"{key}: the cheapest plan")
            plan = asdict(days.cheapest(case, of_hour(hour)))
            kept.keep(key, plan)
        found.append(plan)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--afresh", action="store_true", help="do again what an interrupted run has kept")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose key holds it")
    asked = parser.parse_args(arguments)
    pace = pace_of(asked)
    cases = [case for case in CASES[:: 3 if pace.quick else 1] if asked.only in case.key]
    hours = HOURS[:2] if pace.quick else HOURS
    kept = Kept("twitter_day", DAY_SOURCES), Kept("twitter_day_cheapest", HINDSIGHT_SOURCES)
    for each in kept if asked.afresh else ():
        each.forget()
    documents = []
    for number, case in enumerate(cases, start=1):
        step(f"{case.key} ({number} of {len(cases)})")
        runs = {mode: day_of(case, mode, hours, kept[0]) for mode in days.MODES}
        documents.append(document_of(case, runs, cheapest_of(case, hours, kept[1])))
    figures = [figure for document in documents for figure in figures_of(document)]
    if asked.only:
        print(table([{"name": "twitter_day", "figures": [asdict(figure) for figure in figures]}]))
        return
    write("twitter_day", figures, repeats=1, packages=("gnomon", "numpy"), folder=pace.results, more={"cases": documents})


if __name__ == "__main__":
    ended_well(main)
