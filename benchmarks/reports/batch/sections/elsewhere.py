"""Figures 2, 3 and 16: Lambda beside SageMaker and MArk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.reports.batch.setting import Setting
from benchmarks.reports.claims import Claim, judged, unmeasured
from benchmarks.reports.measured import Measured
from benchmarks.reports.pictures import SERIES, Picture, picture
from benchmarks.reports.sections import Section
from benchmarks.reports.steps import Results
from benchmarks.reports.tables import table

CLOSE = 0.95


def vanilla(_: Setting, results: Results) -> Section:
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
        panels[0].plot(found["minute"], found["rate"], color=SERIES[1], label="requests/s")
        panels[0].plot(found["minute"], found["instances"], color=SERIES[0], label="instances")
        panels[0].set(title="Twitter", xlabel="minute", ylim=(0.0, None))
        panels[0].legend()

    claim = judged(
        "Figure 2(b), Section II-B",
        "The number of Lambda's instances closely follows the arrivals.",
        f"Over {len(found['minute'])} minutes rate and instances have a correlation of {found['correlation']:.3f}.",
        holds=found["correlation"] >= CLOSE,
        why="They do so only where a call is short beside the minutes in which the rate moves.",
    )
    rows = list(zip(found["minute"], found["rate"], found["instances"], strict=True))
    tables = (table("fig2-lambda", "Each minute", ("minute", "requests/s", "instances"), rows),)
    pictures = (picture("fig2-lambda", "Rate and vanilla Lambda's instances, means of each minute.", draw),)
    return Section("fig2", "Figure 2(b): Lambda follows the load", text, pictures, tables, (claim,))


def others(_: Setting, __: Results) -> Section:
    """Figures 2, 3 and 16, from the benchmark of the baselines."""
    baselines = Measured("batch_baselines")
    text = (
        (
            "SageMaker's target tracking and MArk's prediction with functions at surges are policies of their own here, and are "
            "measured by a benchmark of their own; the table is what it has found."
        ),
    )
    tables = (
        (baselines.table("baselines", "The baselines, as benchmarks.batch_baselines measured them"),) if baselines.there else ()
    )
    return Section(
        "others", "Figures 2, 3 and 16: SageMaker and MArk", text, tuple(_pictures(baselines)), tables, tuple(_claims(baselines))
    )


CLAIMS = (
    ("Figure 2(a), Section II-B", "SageMaker's scaling takes minutes to answer a surge, and latency suffers."),
    ("Figure 2(c), Section II-C", "Without batches, Lambda costs more than SageMaker."),
    ("Figure 3, Section II-C", "MArk reacts to a surge after a lag; Lambda has none, and costs more."),
    ("Figure 14, column 3", "Under Twitter with ResNet-v2, SageMaker has the least P95, at a low cost."),
    ("Figure 16, Section VI-D", "At similar cost, MArk violates the SLO at surges; BATCH always meets it."),
    ("Figure 17(b)", "SageMaker's latency may be much longer than BATCH's."),
)


def _pictures(_: Measured) -> Iterable[Picture]:
    return ()


def _claims(baselines: Measured) -> Iterable[Claim]:
    for where, says in CLAIMS:
        if not baselines.there:
            yield unmeasured(where, says, baselines.command)
