"""Figure 2(b): how closely Lambda follows the load."""

from __future__ import annotations

from typing import Any

from benchmarks.reports.batch.setting import Setting
from benchmarks.reports.claims import judged
from benchmarks.reports.pictures import SERIES, picture
from benchmarks.reports.sections import Section
from benchmarks.reports.steps import Results
from benchmarks.reports.tables import table

CLOSE = 0.95


def section(_: Setting, results: Results) -> Section:
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
