"""The report on BATCH: what the paper says beside what we measure, figure by figure.

    python -m benchmarks.reports.batch [--quick] [--output FOLDER]
    python -m benchmarks.reports.batch --renew docs/figures/batch/claims.md

Results of steps are kept in FOLDER/steps, so that a report that was interrupted goes on where it was, and one whose planner has
changed measures no model again. All of it takes about ten minutes on two cores, of which models take half; `--quick` takes
published profiles, two or three hours and a few plans, to see that everything works. `--renew` measures nothing: it brings a
list of claims up to date with what the benchmarks that it reads have published since.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.programs import ROOT, ended_well
from benchmarks.report import interpreter, machine
from benchmarks.reports.batch import accuracy, arrivals, comparisons, cost, days, predictions, services
from benchmarks.reports.batch.setting import QUICK, THOROUGH, Setting
from benchmarks.reports.report import Claim, Measured, Report, Store, renewed, sections_of

FOLDER = ROOT / ".cache" / "reports" / "batch"
QUICK_FOLDER = ROOT / ".cache" / "reports" / "batch-quick"
STEPS = (
    services.steps,
    predictions.concurrency_steps,
    predictions.sensitivity_steps,
    predictions.planning_steps,
    predictions.distribution_steps,
    days.steps,
)
SECTIONS = (
    arrivals.following,
    accuracy.sensitivity,
    arrivals.planning,
    arrivals.intensity,
    accuracy.service_times,
    accuracy.synthetic,
    accuracy.real,
    cost.cheapest,
    cost.parameters,
    cost.budget,
    comparisons.machines,
    comparisons.mark,
    comparisons.bursts,
    comparisons.others,
)
PUBLISHED = ("regression", "twitter_day", comparisons.BENCHMARK)
"""The benchmarks whose results the report reads."""
TITLE = "BATCH, measured again"
ABOUT = (
    (
        "BATCH (Ali, Pinciroli, Yan, Smirni: “BATCH: Machine Learning Inference Serving on Serverless Platforms with Adaptive "
        "Batching”, SC 2020) plans memory, batch size and timeout of functions from their arrivals. Here is each of its figures "
        "with results, made with Gnomon's planner, models measured on this machine, and the traces at hand."
    ),
    (
        "What differs everywhere: models are layer programs of torch on this machine's cores, not TensorFlow 1 and MXNet on AWS "
        "Lambda; a function of m MB has m/1769 vCPUs. Where a model is not to be had, the nearest one stands for it. No AWS "
        "account is used: latencies come from every batch of a run, event by event, with service times that vary as they were "
        "measured."
    ),
)


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reports.batch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small steps only, to see that they work")
    parser.add_argument("--output", type=Path, help=f"where the page goes; {FOLDER.relative_to(ROOT)} unless it is said")
    parser.add_argument("--renew", type=Path, metavar="CLAIMS", help="a list of claims: renew what rests on other benchmarks")
    options = parser.parse_args(arguments)
    if options.renew:
        path: Path = options.renew
        path.write_text(renewed(path.read_text(encoding="utf-8"), published_claims(), published_facts()), encoding="utf-8")
        return path
    setting = QUICK if options.quick else THOROUGH
    folder: Path = options.output or (QUICK_FOLDER if options.quick else FOLDER)
    report = made(setting, Store(folder / "steps", lambda text: print(text, flush=True)))
    page = report.write(folder)
    print(f"{report}\n{page}", flush=True)
    return page


def made(setting: Setting, store: Store) -> Report:
    """The report; what is not kept is measured."""
    facts = {
        "Machine": machine(),
        "Python": interpreter(),
        "Made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Again": "make report-batch"
        if not setting.quick
        else "quick: published profiles, few hours and plans; no result to cite",
        **published_facts(),
    }
    return Report(TITLE, ABOUT, facts, sections_of(STEPS, SECTIONS, setting, store))


def published_claims() -> list[Claim]:
    """Claims on the regression, on the Twitter day planned anew, and on BATCH beside other systems."""
    regression, twitter, baselines = (Measured(name) for name in PUBLISHED)
    return [accuracy.regressed(regression), cost.replanned(twitter), *comparisons.claims(baselines)]


def published_facts() -> dict[str, str]:
    """The date of each benchmark's run; benchmarks that were not run are left out."""
    runs = [
        f"{measurement.name} {measurement.document['measured_at'][:10]}"
        for measurement in map(Measured, PUBLISHED)
        if measurement.there
    ]
    return {"Benchmarks": ", ".join(runs)} if runs else {}


if __name__ == "__main__":
    ended_well(main)
