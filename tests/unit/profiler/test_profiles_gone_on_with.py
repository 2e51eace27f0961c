"""A finished profile is completed by the next run, as far as it is of the same model, machine and software."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gnomon_core.profiles import Evidence, ModelProfile
from gnomon_profiler.measuring.assembly import (
    NO_STORED_CELLS,
    Measured,
    ProfileContext,
    StoredCells,
    assemble,
    difference,
    stored_cells,
)
from gnomon_profiler.measuring.cells import Plan
from gnomon_profiler.measuring.session import Journal, Session
from tests.unit.profiler.played_machine import LAYERS, MACHINE, MB, PLAN, Bench, subject

NOW = {"machine": str(MACHINE), "torch": "2.15", "python": "3.11", "gnomon": "0.9, commit abc", "weights_sha256": "def"}


def profiled(tmp_path: Path, plan: Plan, bench: Bench, day: int = 1, kept: StoredCells = NO_STORED_CELLS) -> ModelProfile:
    """A run on this day of May, which has finished; its cells go on from those of an earlier one."""
    plan = replace(plan, largest=kept.largest_batch)
    journal = Journal(tmp_path / f"{day}.journal", {"program": "abc"})
    results = Session(subject(tmp_path), plan, journal, bench, kept.cells, progress=lambda _: None).run()
    software = {key: NOW[key] for key in ("torch", "python", "gnomon")}
    context = ProfileContext(MACHINE, software, datetime(2026, 5, day, tzinfo=UTC))
    return assemble(Measured(subject(tmp_path), plan, results), context, kept=kept)


def test_other_cores_and_batches_are_added_to_a_profile_and_nothing_of_it_is_measured_again(tmp_path: Path) -> None:
    first = profiled(tmp_path, replace(PLAN, cores=(1,), batches=(1, 2, 4)), Bench({"latency/1/4": [0.3, 0.3, 0.3]}))
    bench = Bench()
    both = profiled(tmp_path, replace(PLAN, cores=(2,), batches=(1, 2)), bench, 2, stored_cells(first))
    assert bench.measured == ["latency/2/1", "latency/2/2", "memory", "starts"]
    assert both.whole.seconds == {**first.whole.seconds, 2: {1: 0.00505, 2: 0.0101}}
    assert [table.seconds[1] for table in both.blocks] == [table.seconds[1] for table in first.blocks]
    assert both.overhead_bytes == first.overhead_bytes == 70 * MB, "after the largest batch that there is"
    assert both.spread.items() > first.spread.items()
    assert both.evidence.block_spread.items() > first.evidence.block_spread.items()
    assert (both.evidence.loading, both.loading, both.network) == (first.evidence.loading, first.loading, first.network)
    assert both.provenance["earlier"] == "7 of 11 cells are of 2026-05-01 by 0.9, commit abc"
    last = profiled(tmp_path, replace(PLAN, cores=(1,), batches=(8,)), Bench(), 3, stored_cells(both))
    assert last.provenance["earlier"] == f"9 of 12 cells are of 2026-05-02 by 0.9, commit abc; {both.provenance['earlier']}"
    assert ModelProfile.from_json(json.loads(json.dumps(last.to_json()))) == last


def test_what_was_repeated_too_seldom_is_measured_again_where_it_is_asked_for(tmp_path: Path) -> None:
    first = profiled(tmp_path, PLAN, Bench())
    plan = replace(PLAN, cores=(1,), repeats=11)
    bench = Bench()
    profiled(tmp_path, plan, bench, 2, stored_cells(first).without(plan.cells(), plan.repeats))
    assert bench.measured == ["latency/1/1", "latency/1/2", "memory", "starts"]


def test_a_profile_without_evidence_is_gone_on_with_and_has_none_of_what_it_lacked(tmp_path: Path) -> None:
    first = replace(profiled(tmp_path, replace(PLAN, cores=(1,)), Bench()), evidence=Evidence())
    bench = Bench()
    both = profiled(tmp_path, replace(PLAN, cores=(2,)), bench, 2, stored_cells(first))
    assert bench.measured == ["latency/2/1", "latency/2/2", "loading", "loading", "memory", "starts", "transfer", "network"]
    assert set(both.evidence.block_spread) == {"2/1", "2/2"}
    assert set(both.whole.seconds) == {1, 2}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"gnomon": "0.9, commit def"}, ""),
        ({"gnomon": "1.0, commit abc"}, "gnomon was 0.9 and is 1.0"),
        ({"torch": "2.16"}, "torch was 2.15 and is 2.16"),
        ({"machine": "another"}, "machine was AMD EPYC"),
        ({"allocator": "another"}, "allocator was "),
        ({"weights_sha256": "other"}, "weights_sha256 was def and is other"),
    ],
)
def test_a_profile_of_something_else_is_not_gone_on_with(tmp_path: Path, changed: dict[str, str], why: str) -> None:
    stored = profiled(tmp_path, PLAN, Bench())
    now = {**stored.provenance, **changed}
    assert difference(stored, LAYERS, now).startswith(why)
    assert bool(difference(stored, LAYERS, now)) == bool(why)
    assert "another program" in difference(stored, replace(LAYERS, program_sha256="other"), now)
