"""The live system beside the simulator: three stretches of load under five policies, and one live burst with and without Shadows.

    make parity                                     three minutes a cell; docs/parity.md and benchmarks/results/parity.json
    python -m benchmarks.parity --seconds 60 --policies od,kpa --stretches calm
    python -m benchmarks.parity --quick             briefly, to see that it works; no result to cite

Profiles are measured first, by steps of their own. Each cell is run live once, whatever comes out, and is kept in
.cache/benchmarks until code of the live side changes, so that an interrupted run goes on where it was. The simulation gets the
profile, the arrivals, the settings and the phase of the autoscaler's looks, and nothing else of the live run.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import burst
from benchmarks.parity import comparison, live, profiling
from benchmarks.parity.live import Recorded
from benchmarks.parity.page import BY_MODEL, SEED, Cell, Compared, figures, page
from benchmarks.parity.recording import read_recording
from benchmarks.programs import QUICK_RESULTS, RESULTS, ROOT, ended_well, step
from benchmarks.report import FOLDER, ResultCache, machine, write
from gnomon_core.clock import parse_time_s
from gnomon_core.errors import bad_request
from gnomon_core.settings import read_settings
from gnomon_simulator.commands import Progress
from gnomon_simulator.profiles import Profile
from gnomon_simulator.replay_report import SUCCESSES
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import simulate

POLICIES = ("asyfunc", "batch", "kpa", "od", "gnomon")
SECONDS, QUICK_S = 180.0, 10.0
LIVE_SOURCES = (
    "core", "autoscaler", "planner", "gateway-plugin", "platforms", "benchmarks/parity/live.py",
    "benchmarks/handlers/parity/handler.py", "benchmarks/stack.yml",
)  # fmt: skip
RECORDS = FOLDER / "parity"
GB = 1e9


def compared(cell: Cell, recorded: Recorded, profile: Profile) -> Compared:
    """Simulate the cell and set it beside its recording."""
    settings = read_settings(recorded.labels, recorded.annotations)
    path = RECORDS / recorded.record
    recording = read_recording(path, recorded.decisions)
    knowledge = "profiled" if profile.model is not None else "learned"
    arrivals_s = [at_s + recording.lead_s for at_s in cell.arrivals()]
    plan = replace(recording.plan(cell.workload.name, settings, profile, knowledge), arrivals_s=arrivals_s)
    result = simulate([plan], [NodePlan("node-1", cell.workload.cores)], SEED)[plan.name]
    samples = recording.samples
    rows = zip(samples.sent_s, samples.answered_s, samples.status, strict=True)
    latencies_s = [answered - sent for sent, answered, status in rows if status in SUCCESSES]
    first_s = parse_time_s(recorded.started_at) - recording.lead_s
    last_s = max((at_s for at_s in samples.answered_s if not math.isnan(at_s)), default=0.0) + recording.lead_s
    looks = [(at_s - first_s, held) for at_s, held in recorded.looks]
    # Instances exist from the first decision on, a moment before the first look.
    memory = comparison.byte_s([(0.0, looks[0][1]), *looks] if looks else [], last_s) / GB
    begin_s = recording.lead_s
    sides = (
        comparison.side(
            latencies_s, len(samples), settings.slo_s, memory,
            comparison.decided_by_second(recorded.decisions, begin_s, cell.seconds),
        ),
        comparison.side(
            result.requests.latencies_s(), len(result.requests), settings.slo_s, result.cost.memory_byte_s / GB,
            comparison.decided_by_second([decision.to_json() for decision in result.decisions], begin_s, cell.seconds),
        ),
    )  # fmt: skip
    return Compared(cell, *sides, comparison.verdicts(*sides), recorded.lag_p99_s)


def recorded_cells(cells: Sequence[Cell], kept: ResultCache) -> dict[str, Recorded]:
    """The live runs: those that are kept, and the others one after the other."""
    found = {cell.key: Recorded(**held) for cell in cells if (held := kept.get(cell.key)) is not None}
    missing = [cell for cell in cells if cell.key not in found]
    step(f"{len(found)} of {len(cells)} live cells are kept")
    progress = Progress("parity", "live cells")
    for number, cell in enumerate(missing):
        progress.at(number, len(missing))
        step(f"{cell.stretch}, {cell.policy}: {cell.seconds:g} s live")
        found[cell.key] = live.record(cell.workload, cell.policy, cell.arrivals(), RECORDS / f"{cell.key}.jsonl")
        kept.keep(cell.key, found[cell.key].to_json())
    progress.end()
    return found


def handler_profile(kept: ResultCache, *, quick: bool) -> Mapping[str, Any]:
    """The handler's profile, measured where none of this machine is kept."""
    if quick:
        kept.forget()
    key = f"profile of {live.HANDLER}, {'brief' if quick else 'whole'}, {machine()}"
    document: dict[str, Any] | None = kept.get(key)
    if document is None:
        document = profiling.handler_profile(quick=quick)
        kept.keep(key, document)
    return document


def burst_with_and_without_shadows(kept: ResultCache) -> list[dict[str, Any]]:
    """One live burst of the model by `asyfunc`, with its Shadows and without, each once."""
    burst.add_and_profile(live.BURST_MODEL)
    asked = argparse.Namespace(model=live.BURST_MODEL, max_batch=4, most=2, weight_mode="private")
    profile = burst.read_profile(live.BURST_MODEL)
    slo_s = 2.0 * (profile.whole.at(1, 4) or 0.5)
    load = burst.burst_for(profile, slo_s, asked.max_batch)
    found = []
    for policy in ("asyfunc", "asyfunc-"):
        row = kept.get(f"burst {policy}")
        if row is None:
            seen = burst.run(policy, asked, load, slo_s)
            late, count = seen.violations()
            late_in, count_in = seen.violations(load.before_s, load.before_s + load.burst_s)
            row = {
                "policy": policy,
                "requests": count,
                "late": late,
                "requests_in_burst": count_in,
                "late_in_burst": late_in,
                "bodies": seen.most("body"),
                "shadows": seen.most("shadow"),
                "offloaded": seen.looks[-1].offloaded if seen.looks else 0,
                "memory_gib_s": seen.memory_mib_s() / 1024,
                "slo_ms": 1e3 * slo_s,
                "seconds": [asdict(second) for second in burst.seconds(seen)],
            }
            kept.keep(f"burst {policy}", row)
        found.append(row)
    return found


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"cells of {QUICK_S:g} s, to see that it works; no result to cite")
    parser.add_argument("--seconds", type=float, help=f"load of a cell; {SECONDS:g} unless it is said")
    parser.add_argument("--policies", default=",".join(POLICIES), help=f"default {','.join(POLICIES)}")
    parser.add_argument("--stretches", default=",".join(live.STRETCHES), help=f"default {','.join(live.STRETCHES)}")
    parser.add_argument("--no-burst", action="store_true", help="leave out the burst with and without Shadows")
    options = parser.parse_args(arguments)
    seconds = options.seconds or (QUICK_S if options.quick else SECONDS)
    policies = _chosen("policies", options.policies, POLICIES)
    cells = [
        Cell(stretch, policy, seconds)
        for stretch in _chosen("stretches", options.stretches, live.STRETCHES)
        for policy in policies
    ]
    kept = ResultCache("parity", LIVE_SOURCES)
    if options.quick:
        kept.forget()
    measured = ResultCache("parity-profile", (*LIVE_SOURCES, "benchmarks/parity/profiling.py"))
    profiles: dict[str, Any] = {"handler": handler_profile(measured, quick=options.quick)}
    with_burst = not (options.no_burst or options.quick)
    if any(policy in BY_MODEL for policy in policies):
        burst.add_and_profile(live.MODEL)
        profiles["model"] = dict(burst.read_profile(live.MODEL).provenance)
    found = recorded_cells(cells, kept)
    documents = {"handler": profiles["handler"], "model": None}
    rows = [
        compared(cell, found[cell.key], profiling.profile_of(documents["model" if cell.policy in BY_MODEL else "handler"]))
        for cell in cells
    ]
    bursts = burst_with_and_without_shadows(kept) if with_burst else []
    results, path = (QUICK_RESULTS, QUICK_RESULTS / "parity.md") if options.quick else (RESULTS, ROOT / "docs" / "parity.md")
    more = {"seconds": seconds, "profiles": profiles, "cells": [row.to_json() for row in rows], "burst": bursts}
    write("parity", figures(rows), repeats=1, packages=("gnomon", "numpy"), folder=results, more=more)
    text = page(rows, bursts, profiles["handler"], seconds, SECONDS)
    path.write_text(text, encoding="utf-8")
    print(text, flush=True)
    return path


def _chosen(what: str, text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise bad_request(f"unknown_{what}", f"--{what} {unknown[0]} is not known.", f"Choose from {', '.join(known)}.")
    return names


if __name__ == "__main__":
    ended_well(main, "parity")
