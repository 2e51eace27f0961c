"""Profiles: measuring, publishing, resuming, figures."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.profiles import Evidence, ModelProfile
from gnomon_profiler.measuring.assembly import (
    NO_STORED_CELLS,
    Measured,
    ProfileContext,
    ReadyTimes,
    StoredCells,
    assemble,
    difference,
    stored_cells,
)
from gnomon_profiler.measuring.cells import Cell, Plan, fixed_and_per_unit, loading_sets
from gnomon_profiler.measuring.profiling import ProfileOptions, parse_numbers, plan_for
from gnomon_profiler.measuring.session import Journal, Remaining, Session, spread_of, this_machine
from gnomon_profiler.measuring.store import ProfileStore, read_profile
from tests.refusals import refused
from tests.unit.profiler.played_machine import LAYERS, MACHINE, MB, PLAN, Bench, subject


def run(tmp_path: Path, bench: Bench, plan: Plan = PLAN, said: list[str] | None = None) -> dict[Cell, dict[str, Any]]:
    journal = Journal(tmp_path / "m.journal", {"program": "abc"})
    return Session(subject(tmp_path), plan, journal, bench, progress=(said if said is not None else []).append).run()


@pytest.fixture
def profile(tmp_path: Path) -> ModelProfile:
    measured = Measured(subject(tmp_path), PLAN, run(tmp_path, Bench()))
    context = ProfileContext(MACHINE, {"torch": "2.15", "python": "3.11"}, datetime(2026, 5, 1, tzinfo=UTC))
    return assemble(measured, context)


# Lines


def test_a_line_is_found_through_exact_points() -> None:
    fixed, per_unit = fixed_and_per_unit([0, 10, 20, 30], [1.0, 3.0, 5.0, 7.0])
    assert (fixed, per_unit) == (pytest.approx(1.0), pytest.approx(0.2))


def test_small_sizes_decide_the_fixed_part_although_large_ones_err_more() -> None:
    # The largest is 10 % off, 0.9 s: absolute errors would make the fixed part negative or many times too large.
    fixed, per_unit = fixed_and_per_unit([1, 10, 100, 1000], [0.02, 0.11, 1.01, 9.0])
    assert fixed == pytest.approx(0.01, rel=0.3)
    assert per_unit == pytest.approx(0.01, rel=0.1)


def test_no_part_of_a_line_is_negative() -> None:
    assert fixed_and_per_unit([1, 2], [1.0, 3.0])[0] == 0.0
    assert fixed_and_per_unit([1, 2], [3.0, 1.0])[1] == 0.0
    with pytest.raises(ValueError, match="points"):
        fixed_and_per_unit([], [])


# Journal and session


def test_an_interrupted_run_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    whole = run(tmp_path / "at-once", Bench())
    first, second = Bench(dies_after=4), Bench()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, first)
    said: list[str] = []
    assert run(tmp_path, second, said=said) == whole
    assert len(first.measured) == 4
    assert sorted(first.measured + second.measured) == sorted(every_key())
    assert "4 of 10 cells are measured already" in said[0]


def every_key() -> list[str]:
    latencies = [f"latency/{cores}/{batch}" for cores in (1, 2) for batch in (1, 2)]
    return [*latencies, "loading", "loading", "memory", "starts", "transfer", "network"]


def test_a_line_cut_off_by_a_kill_is_measured_again_and_no_other(tmp_path: Path) -> None:
    run(tmp_path, Bench())
    journal = tmp_path / "m.journal"
    journal.write_bytes(journal.read_bytes()[:-20])
    bench = Bench()
    run(tmp_path, bench)
    assert bench.measured == ["network"]


def test_a_journal_of_something_else_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "m.journal"
    Journal(path, {"program": "abc"}).add(Cell("memory"), {"busy_bytes": 1})
    assert len(Journal(path, {"program": "abc"})) == 1
    assert len(Journal(path, {"program": "changed"})) == 0
    assert len(Journal(path, {"program": "abc"})) == 0


def test_more_batches_go_on_from_fewer(tmp_path: Path) -> None:
    run(tmp_path, Bench())
    bench = Bench()
    results = run(tmp_path, bench, replace(PLAN, batches=(1, 2, 4)))
    assert bench.measured == ["latency/1/4", "latency/2/4", "memory"]
    assert results[Cell("latency", 2, 4)]["repeats"] == 10


def test_memory_is_that_of_the_largest_batch_also_where_a_run_went_on_with_larger_ones(tmp_path: Path) -> None:
    run(tmp_path, Bench())
    plan = replace(PLAN, batches=(1, 2, 4))
    measured = Measured(subject(tmp_path), plan, run(tmp_path, Bench(), plan))
    profile = assemble(measured, ProfileContext(MACHINE, {}, datetime(2026, 5, 1, tzinfo=UTC)))
    assert profile.overhead_bytes == 70 * MB
    assert "70.0 MB after a batch of 4" in profile.provenance["overhead"]


def test_noisy_cells_are_measured_again_up_to_three_times_and_the_quickest_counts(tmp_path: Path) -> None:
    bench = Bench({"latency/1/2": [0.2, 0.02], "latency/2/1": [0.3, 0.4, 0.25]})
    results = run(tmp_path, bench)
    assert bench.measured.count("latency/1/2") == 2
    assert bench.measured.count("latency/2/1") == 3
    assert spread_of(results[Cell("latency", 1, 2)]) == pytest.approx(0.02)
    assert spread_of(results[Cell("latency", 2, 1)]) == pytest.approx(0.25)


def test_attempts_for_a_noisy_cell_are_configurable(tmp_path: Path) -> None:
    bench = Bench({"latency/2/1": [0.3, 0.01]})
    results = run(tmp_path, bench, replace(PLAN, tries=1))
    assert bench.measured.count("latency/2/1") == 1
    assert spread_of(results[Cell("latency", 2, 1)]) == pytest.approx(0.3)


def test_progress_says_what_was_found_and_how_long_the_rest_takes(tmp_path: Path) -> None:
    said: list[str] = []
    run(tmp_path, Bench(), said=said)
    assert said[0].startswith("m@1: 1 core, batch 1: 10.1 ms ± 1.0 % in 10 runs  (1 of 10, about ")
    assert said[-1] == "m@1: network  (10 of 10, about 0 s left)"


def test_the_remaining_time_follows_the_cost_of_cells() -> None:
    remaining = Remaining(total_cost=12.0, began_s=100.0)
    # A batch of 4 on one core took 8 s: the other 8 units take 16.
    assert remaining.after(Cell("latency", 1, 4), 108.0) == pytest.approx(16.0)
    assert remaining.after(Cell("latency", 1, 8), 124.0) == 0.0


# Assembly


def test_a_profile_holds_what_was_measured(profile: ModelProfile) -> None:
    assert profile.whole.at(2, 2) == pytest.approx(0.0101)
    assert profile.whole.at(4, 1) is None
    assert profile.blocks[0].at(1, 2) == pytest.approx(0.0101)
    assert profile.loading["private"].seconds(10 * MB) == pytest.approx(0.012)
    assert profile.block_load_s["shared"] == pytest.approx((0.003, 0.0, 0.005))
    assert profile.transfer_seconds(MB, MB) == pytest.approx(4e-4)
    elsewhere = profile.over_network()
    assert elsewhere.transfer_seconds(MB, MB) == pytest.approx(1.4e-3)
    assert profile.overhead_bytes == 50 * MB
    assert (profile.body_start_s, profile.shadow_start_s) == (0.06, 0.01)
    assert profile.spread["1/1"] == pytest.approx(0.01)
    assert profile.provenance["machine_id"] == "amd-epyc-25-17-2-cores"
    assert profile.provenance["date"] == "2026-05-01"
    assert profile.provenance["weights"] == "random, seed 0"
    assert "GB/s" in profile.provenance["loading_private"]


def test_a_profile_keeps_what_its_numbers_were_taken_from(profile: ModelProfile) -> None:
    kept = profile.evidence
    assert kept.block_spread["2/1"] == pytest.approx((0.1, 0.2, 0.0))
    assert kept.worst_block_spread(1) == pytest.approx(0.2)
    # Each block with weights alone, then growing parts: 1 MB takes 3 ms.
    assert kept.loading["shared"].sizes_bytes == (MB, 3 * MB, MB, MB, 4 * MB, 4 * MB)
    assert kept.loading["shared"].seconds[0] == pytest.approx(0.003)
    assert kept.loading["shared"].spread == pytest.approx(0.5 / 3)
    assert kept.transfer.off(profile.transfer_fixed_s, profile.transfer_seconds_per_byte) < 0.001
    assert kept.transfer.off(2 * profile.transfer_fixed_s, profile.transfer_seconds_per_byte) == pytest.approx(1.0, rel=0.01)
    assert kept.network.ranges_s[0] == 2e-5


def test_a_profile_from_before_evidence_was_kept_can_be_read(profile: ModelProfile) -> None:
    document = profile.to_json()
    del document["measured"]
    assert ModelProfile.from_json(document) == replace(profile, evidence=Evidence())
    assert Evidence().worst_block_spread(0) is None


@pytest.mark.parametrize("broken", [{"block_spread": {"1/1": [0.1]}}, {"transfer": {"sizes_bytes": [1], "seconds": []}}, []])
def test_evidence_of_something_else_makes_no_profile(profile: ModelProfile, broken: object) -> None:
    with pytest.raises(ValueError, match="no"):
        ModelProfile.from_json(profile.to_json() | {"measured": broken})


def test_a_profile_is_the_same_after_a_file(profile: ModelProfile) -> None:
    assert ModelProfile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


def test_the_platforms_starts_are_taken_where_there_is_one(tmp_path: Path) -> None:
    measured = Measured(subject(tmp_path), PLAN, run(tmp_path, Bench()))
    context = ProfileContext(MACHINE, {}, datetime(2026, 5, 1, tzinfo=UTC))
    profile = assemble(measured, context, ReadyTimes(0.1, "the local platform"))
    # Loading the 4 MB shared took 6 of the 100 ms.
    assert profile.body_start_s == pytest.approx(0.094)
    assert profile.body_load_s("shared") == pytest.approx(0.1)
    assert profile.shadow_start_s == 0.01
    both = assemble(measured, context, ReadyTimes(0.1, "the local platform", shadow_s=0.02, shadow_bytes=MB))
    assert both.shadow_load_s("shared", MB) == pytest.approx(0.02)
    assert both.provenance["starts"] == "the local platform"


def test_blocks_are_loaded_alone_and_in_growing_parts() -> None:
    # Block 1 has no weights: there is nothing to load.
    assert loading_sets(LAYERS) == [[0], [2], [0], [0], [0, 2], [0, 2]]


# Machines and stores


def test_a_machines_id_is_a_file_name_that_says_what_it_is() -> None:
    machine = this_machine("model name\t: Intel(R) Xeon(R) Gold 6240 CPU @ 2.60GHz\ncpu family\t: 6\nmodel\t\t: 85\n")
    assert machine.id == f"intel-xeon-gold-6240-cpu-2-60ghz-6-85-{machine.cores}-cores"


def test_cores_beyond_the_machine_are_refused_with_what_to_do() -> None:
    with refused(code="cores_beyond_machine", message="2 cores"):
        plan_for(MACHINE, ProfileOptions(cores=(1, 16)))
    assert plan_for(MACHINE, ProfileOptions()).cores == (1, 2)


@pytest.mark.parametrize(("text", "numbers"), [("1", (1,)), ("1,2,4-6", (1, 2, 4, 5, 6)), (" 2 , 3-3", (2, 3))])
def test_lists_of_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "0", "a", "3-1", "1,,2", "-1"])
def test_invalid_number_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no number above 0"):
        parse_numbers(text)


def test_a_store_keeps_profiles_by_model_and_machine(tmp_path: Path, profile: ModelProfile) -> None:
    store = ProfileStore(tmp_path)
    path = store.put("m@1", "here", profile)
    store.put("m@1", "elsewhere", profile)
    store.put("n@2", "here", replace(profile, model="n@2"))
    assert path == tmp_path / "profiles" / "m@1" / "here.json"
    assert read_profile(path) == profile
    assert [path.stem for path, _ in store.list("m@1")] == ["elsewhere", "here"]
    assert [one.model for _, one in store.list()] == ["m@1", "m@1", "n@2"]


def test_invalid_profile_is_left_out(tmp_path: Path, profile: ModelProfile) -> None:
    store = ProfileStore(tmp_path)
    store.put("m@1", "here", profile)
    store.path("m@1", "torn").write_text('{"format": "gnomon-profile/1", "model"', encoding="utf-8")
    store.path("m@1", "other").write_text("{}", encoding="utf-8")
    assert [path.stem for path, _ in store.list()] == ["here"]


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


def test_cells_with_too_few_repeats_are_measured_again(tmp_path: Path) -> None:
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
