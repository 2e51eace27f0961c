"""Profiles: measured, resumed, published, drawn; and the repository that keeps them."""

import csv
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.blocks import Block, Layers
from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile, ProfileMeasurements
from gnomon_profiler.figures.plots import draw
from gnomon_profiler.figures.tables import (
    correlation,
    drawable,
    increases,
    offloaded,
    output_increases,
    pearson,
    sensitivities,
    short_name,
    write_tables,
)
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
from gnomon_profiler.measuring.cells import Cell, Plan, Subject, fixed_and_per_unit, loading_sets
from gnomon_profiler.measuring.profiling import ProfileOptions, parse_numbers, plan_for
from gnomon_profiler.measuring.session import Journal, Machine, Remaining, Session, spread_of, this_machine
from gnomon_profiler.measuring.store import ProfileStore, read_profile
from gnomon_profiler.names import in_catalog, meant, not_in_catalog
from gnomon_profiler.repository import DirectoryRepository, open_repository
from tests.refusals import refused

MB = 1_000_000
LAYERS = Layers(
    "abc",
    ("y",),
    (
        Block("wide", 0, 3, ("x",), ("a",), ("w0",), 4_000_000, 1 * MB, splittable=True),
        Block("bare", 3, 4, ("a",), ("b",), (), 1_000, 0, splittable=True),
        Block("deep", 4, 9, ("b",), ("y",), ("w1", "w2"), 1_000_000, 3 * MB, splittable=True),
    ),
    {"x": 600, "a": 800, "b": 200, "y": 40},
)
PLAN = Plan((1, 2), (1, 2), 10, (0, 1))
MACHINE = Machine("AMD EPYC", "25 17", (0, 1), 24, "6.18")


def subject(tmp_path: Path) -> Subject:
    files = (tmp_path / name for name in ("program.json", "weights.safetensors", "layers.json"))
    return Subject("m@1", *files, LAYERS, {"weights.safetensors": "def"}, {"weights": "random, seed 0"})  # type: ignore[call-arg]


class Bench:
    """Measures what a model of a machine says: batches take 10 ms a sample on a core, blocks 5, 1 and 4 of them.

    A batch holds 10 MB a sample beside 30. `spreads` are the spreads of a cell's tries, `dies_after` says after how many cells it
    is killed.
    """

    def __init__(self, spreads: Mapping[str, list[float]] | None = None, dies_after: int | None = None) -> None:
        self._spreads = {key: list(values) for key, values in (spreads or {}).items()}
        self._left = dies_after
        self.measured: list[str] = []

    def measure(self, order: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if order["measure"] == "latency":
            for batch in order["batches"]:
                yield self._latency(int(order["cores"]), int(batch))
            return
        self._count(order["measure"])
        yield {
            "loading": {
                "seconds": [0.002 + 1e-9 * LAYERS.parameter_bytes(numbers) for numbers in order.get("sets", ())],
                "ranges_s": [0.0005 for _ in order.get("sets", ())],
            },
            "memory": {
                "idle_bytes": 20 * MB,
                "busy_bytes": (30 + 10 * order.get("batch", 0)) * MB,
                "proportional_bytes": 90 * MB,
            },
            "starts": {"body_s": 0.06, "shadow_s": 0.01},
            "transfer": {
                "sizes_bytes": order.get("sizes_bytes"),
                "seconds": [1e-4 + 1e-10 * size for size in order.get("sizes_bytes", ())],
                "ranges_s": [1e-5 for _ in order.get("sizes_bytes", ())],
            },
            "network": {
                "sizes_bytes": order.get("sizes_bytes"),
                "seconds": [2e-4 + 5e-10 * size for size in order.get("sizes_bytes", ())],
                "ranges_s": [2e-5 for _ in order.get("sizes_bytes", ())],
            },
        }[order["measure"]]

    def _latency(self, cores: int, batch: int) -> dict[str, Any]:
        key = f"latency/{cores}/{batch}"
        self._count(key)
        spread = (self._spreads.get(key) or [0.01]).pop(0)
        whole_s = 0.01 * batch / cores * (1 + spread)
        return {
            "whole_s": whole_s,
            "range_s": spread * whole_s,
            "repeats": 10,
            "blocks_s": [whole_s * part for part in (0.5, 0.1, 0.4)],
            "block_ranges_s": [whole_s * part for part in (0.05, 0.02, 0.0)],
        }

    def _count(self, key: str) -> None:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left = None if self._left is None else self._left - 1
        self.measured.append(key)


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


def test_memory_is_that_of_the_largest_batch_also_after_a_resumed_run(tmp_path: Path) -> None:
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
    kept = profile.measurements
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
    assert ModelProfile.from_json(document) == replace(profile, measurements=ProfileMeasurements())
    assert ProfileMeasurements().worst_block_spread(0) is None


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
    assert [profile.model for _, profile in store.list()] == ["m@1", "m@1", "n@2"]


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
    return assemble(Measured(subject(tmp_path), plan, results), context, stored=kept)


def test_other_cores_and_batches_are_added_to_a_profile_and_nothing_of_it_is_measured_again(tmp_path: Path) -> None:
    first = profiled(tmp_path, replace(PLAN, cores=(1,), batches=(1, 2, 4)), Bench({"latency/1/4": [0.3, 0.3, 0.3]}))
    bench = Bench()
    both = profiled(tmp_path, replace(PLAN, cores=(2,), batches=(1, 2)), bench, 2, stored_cells(first))
    assert bench.measured == ["latency/2/1", "latency/2/2", "memory", "starts"]
    assert both.whole.seconds == {**first.whole.seconds, 2: {1: 0.00505, 2: 0.0101}}
    assert [table.seconds[1] for table in both.blocks] == [table.seconds[1] for table in first.blocks]
    assert both.overhead_bytes == first.overhead_bytes == 70 * MB, "after the largest batch that there is"
    assert both.spread.items() > first.spread.items()
    assert both.measurements.block_spread.items() > first.measurements.block_spread.items()
    assert (both.measurements.loading, both.loading, both.network) == (first.measurements.loading, first.loading, first.network)
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


def test_profile_without_evidence_can_be_resumed(tmp_path: Path) -> None:
    first = replace(profiled(tmp_path, replace(PLAN, cores=(1,)), Bench()), measurements=ProfileMeasurements())
    bench = Bench()
    both = profiled(tmp_path, replace(PLAN, cores=(2,)), bench, 2, stored_cells(first))
    assert bench.measured == ["latency/2/1", "latency/2/2", "loading", "loading", "memory", "starts", "transfer", "network"]
    assert set(both.measurements.block_spread) == {"2/1", "2/2"}
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


# Milliseconds of each block at batches of 1 to 5. From 2 to 4 they grow by 20, 8, 4 and 0 ms.
LATENCIES_MS = {
    "early": (10, 20, 30, 40, 50),
    "middle": (4, 8, 12, 16, 20),
    "late": (4, 6, 8, 10, 12),
    "head": (3, 3, 3, 3, 3),
}
SIZES = {
    "early": 1 * MB,
    "middle": 2 * MB,
    "late": 3 * MB,
    "head": 14 * MB,
}
OUTPUT_BYTES = {"early": 4 * MB, "middle": 2 * MB, "late": MB, "head": 4000}


def table(milliseconds: tuple[int, ...]) -> LatencyTable:
    return LatencyTable({1: {batch: value / 1000 for batch, value in enumerate(milliseconds, 1)}})


@pytest.fixture
def drawn() -> ModelProfile:
    names = list(LATENCIES_MS)
    blocks = tuple(
        Block(name, index, index + 1, (before,), (name,), (f"w{index}",), 10, SIZES[name], splittable=name != "head")
        for index, (before, name) in enumerate(zip(("image", *names), names, strict=False))
    )
    whole = tuple(map(sum, zip(*LATENCIES_MS.values(), strict=True)))
    return ModelProfile(
        model="torchvision:made-up@1",
        layers=Layers("abc", ("head",), blocks, {"image": 600_000, **OUTPUT_BYTES}),
        whole=table(whole),
        blocks=tuple(table(row) for row in LATENCIES_MS.values()),
        loading={"shared": Loading(0.002, 0.0), "private": Loading(0.002, 1e-9)},
        body_start_s=0.05,
        shadow_start_s=0.01,
        overhead_bytes=0,
        transfer_fixed_s=0.0001,
        transfer_seconds_per_byte=1e-10,
    )


def test_figure_2_sensitive_blocks_are_small_ones(drawn: ModelProfile) -> None:
    rows = sensitivities(drawn)
    assert [1000 * row.increase_s for row in rows] == pytest.approx([20, 8, 4, 0])
    assert [row.parameter_bytes for row in rows] == list(SIZES.values())
    assert [1000 * row.load_s for row in rows] == pytest.approx([3, 4, 5, 16])


def test_figure_2_takes_measured_loading_times_where_there_are_any(drawn: ModelProfile) -> None:
    object.__setattr__(drawn, "block_load_s", {"private": (0.1, 0.2, 0.3, 0.4)})
    assert [row.load_s for row in sensitivities(drawn)] == [0.1, 0.2, 0.3, 0.4]


def test_figure_3_is_a_distribution(drawn: ModelProfile) -> None:
    to_four = [row for row in increases(drawn) if row.to_batch == 4]
    assert [1000 * row.increase_s for row in to_four] == pytest.approx([0, 4, 8, 20])
    assert [row.share_of_blocks for row in to_four] == [0.25, 0.5, 0.75, 1.0]
    assert {row.to_batch for row in increases(drawn)} == {3, 4, 5}


def only(drawn: ModelProfile, *batches: int) -> ModelProfile:
    """The profile as if no other batches had been measured."""

    def fewer(whole: LatencyTable) -> LatencyTable:
        return LatencyTable({1: {batch: whole.seconds[1][batch] for batch in batches}})

    return replace(
        drawn,
        whole=fewer(drawn.whole),
        blocks=tuple(map(fewer, drawn.blocks)),
    )


def test_figure_3_shows_measured_batches_only(drawn: ModelProfile, tmp_path: Path) -> None:
    """An interpolated time says nothing about that batch."""
    some = only(drawn, 1, 2, 4)
    assert {row.to_batch for row in increases(some)} == {4}
    assert increases(some) == [row for row in increases(drawn) if row.to_batch == 4]
    assert {row.to_batch for row in output_increases(some)} == {3, 4, 5}, "by arithmetic"
    [picture, _] = draw([some], tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_figures_need_the_batches_that_they_compare(drawn: ModelProfile) -> None:
    assert drawable(drawn)
    assert not drawable(drawn, 16)
    some = only(drawn, 1, 2, 5)
    assert not drawable(some)
    for rows in (sensitivities, offloaded, correlation):
        with pytest.raises(ValueError, match="batches of 2 and 4 were not measured"):
            rows(some)


def test_figure_4_offloads_the_largest_increase_first_and_never_what_cannot_be_split(
    drawn: ModelProfile,
) -> None:
    rows = offloaded(drawn)
    assert [row.blocks for row in rows] == [0, 1, 2, 3]
    assert [1000 * row.ideal_s for row in rows] == pytest.approx([32, 12, 4, 0])
    assert [row.share_of_weights for row in rows] == pytest.approx([0, 0.05, 0.15, 0.3])


def test_figure_4_with_hand_overs_is_equation_6(drawn: ModelProfile) -> None:
    # Without a Shadow: the whole increase. With "early": 20 ms less, but two samples of 0.6 MB go there and of 4 MB come back,
    # which takes 2 · 0.1 ms + 9.2 MB · 0.1 ms/MB = 1.12 ms; the Shadow's half is the slower one by that.
    rows = offloaded(drawn)
    assert 1000 * rows[0].paired_s == pytest.approx(32)
    assert 1000 * rows[1].paired_s == pytest.approx(12 + 1.12)
    # "early" and "middle" are one run: 4 MB need not come back between them, only 2 MB at the end.
    assert 1000 * rows[2].paired_s == pytest.approx(4 + 0.2 + 2 * 2.6 * 0.1)


def test_figure_7_outputs_grow_with_the_samples(drawn: ModelProfile) -> None:
    rows = [row for row in output_increases(drawn) if row.block == "early"]
    assert [(row.to_batch, row.increase_bytes) for row in rows] == [
        (3, 4 * MB),
        (4, 8 * MB),
        (5, 12 * MB),
    ]


def test_the_appendix_finds_the_anti_correlation(drawn: ModelProfile) -> None:
    found = correlation(drawn)
    assert found.spearman == pytest.approx(-1.0)
    # Around their means of 8 and 5: the products sum to -112, the squares to 224 and 110.
    assert found.pearson == pytest.approx((12 * -4 + 0 * -3 + -4 * -2 + -8 * 9) / math.sqrt(224 * 110))


def test_correlations_of_what_does_not_vary_are_no_numbers() -> None:
    assert math.isnan(pearson([1, 1], [1, 2]))
    assert pearson([1, 2, 3], [6, 4, 2]) == pytest.approx(-1)


def test_equal_values_share_their_rank(drawn: ModelProfile) -> None:
    tied = ModelProfile(**{name: getattr(drawn, name) for name in ModelProfile.__slots__} | {"blocks": (drawn.blocks[0],) * 4})
    assert math.isnan(correlation(tied).spearman)


def test_unmeasured_cores_are_refused(drawn: ModelProfile) -> None:
    with pytest.raises(ValueError, match="16 cores were not measured"):
        sensitivities(drawn, 16)


def test_tables_become_files(drawn: ModelProfile, tmp_path: Path) -> None:
    assert short_name(drawn) == "made-up"
    written = write_tables([drawn], tmp_path)
    assert sorted(path.name for path in written) == [
        "anti-correlation.csv",
        *(f"made-up-figure-{number}.csv" for number in (2, 3, 4, 7)),
    ]
    with (tmp_path / "made-up-figure-2.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["block"], float(rows[0]["increase_s"])) == ("early", pytest.approx(0.02))


def test_pictures_are_drawn(drawn: ModelProfile, tmp_path: Path) -> None:
    written = draw([drawn, drawn], tmp_path)
    assert [path.name for path in written] == ["made-up.png", "made-up.png", "anti-correlation.png"]
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 100_000


PROFILES = sorted((Path(__file__).parents[3] / "profiles").glob("*.json"))
LARGEST_BYTES = 300_000


@pytest.fixture(params=PROFILES, ids=lambda path: path.stem)
def published(request: pytest.FixtureRequest) -> ModelProfile:
    assert request.param.stat().st_size < LARGEST_BYTES
    return read_profile(request.param)


def test_profiles_are_published() -> None:
    assert PROFILES


def test_blocks_sum_to_the_whole_in_every_cell(published: ModelProfile) -> None:
    for cores, row in published.whole.seconds.items():
        for batch, whole_s in row.items():
            blocks_s = sum(table.seconds[cores][batch] for table in published.blocks)
            assert blocks_s == pytest.approx(whole_s, rel=1e-4), (cores, batch)


def test_larger_batches_take_longer(published: ModelProfile) -> None:
    for row in published.whole.seconds.values():
        seconds = [row[batch] for batch in sorted(row)]
        assert seconds == sorted(seconds)


def test_more_cores_are_quicker_and_not_more_than_they_are(published: ModelProfile) -> None:
    for cores, row in published.whole.seconds.items():
        for batch, seconds in row.items():
            one_core_s = published.whole.seconds[1][batch]
            # Two cores have two caches: a few percent beyond their number is possible.
            assert seconds <= one_core_s
            assert one_core_s < 1.1 * cores * seconds


def test_published_profile_has_quiet_cells(published: ModelProfile) -> None:
    assert set(published.spread) == {f"{cores}/{batch}" for cores, row in published.whole.seconds.items() for batch in row}
    assert max(published.spread.values()) < 0.1


def test_published_profile_names_its_provenance(published: ModelProfile) -> None:
    named = {"machine", "machine_id", "torch", "python", "gnomon", "date", "weights", "allocator", "loading_private", "starts"}
    assert named <= published.provenance.keys()


def test_a_half_of_the_batch_elsewhere_is_worth_it(published: ModelProfile) -> None:
    blocks = tuple(number for number, block in enumerate(published.layers.blocks) if block.splittable)
    split = best_split(published, (1, 1), blocks, 4)
    paired_s = pair_seconds(published, 1, Pair(1, blocks, split), 4)
    assert paired_s is not None
    assert paired_s < 0.7 * published.whole.seconds[1][4]


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16", "ssd300_vgg16"])
def test_an_architecture_of_torchvision_is_told_by_its_whole_name(name: str) -> None:
    error = not_in_catalog(name)
    assert (error.status, error.code) == (404, "model_not_found")
    assert f"`gnomon models add torchvision:{name}`" in error.hint
    assert in_catalog(f"torchvision:{name}")


@pytest.mark.parametrize(
    "name", ["resnet", "resnet51", "Resnet50", "_resnet", "", "a(b", "x" * 1000, "list_models\n", "resnet:50"]
)
def test_nothing_is_guessed_of_other_names(name: str) -> None:
    hint = not_in_catalog(name).hint
    assert "gnomon models add" not in hint
    assert "efficientnet-lite0" in hint


@pytest.mark.parametrize(
    ("name", "source", "whole"),
    [
        ("mine", "resnet50", "torchvision:resnet50"),
        ("resnet50", "torchvision", "torchvision:resnet50"),
        ("torchvision:resnet50", "torchvision", "torchvision:resnet50"),
        ("yolov8x", "ultralytics", "ultralytics:yolov8x"),
        ("mine", "efficientnet-lite0", "efficientnet-lite0"),
        ("mine", "torchvision:resnet50", "torchvision:resnet50"),
        ("resnet50", "network.py:make", "network.py:make"),
        ("resnet50", "resnet51", "resnet51"),
    ],
)
def test_a_source_may_be_short_where_it_has_one_meaning(name: str, source: str, whole: str) -> None:
    assert meant(name, source) == whole


@pytest.mark.parametrize("address", ["s3://", "s3:///models", "gs://bucket/models", "https://host/models"])
def test_an_address_that_leads_nowhere_is_refused(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another scheme was a folder of that name, which had no models."""
    monkeypatch.chdir(tmp_path)
    with refused(400, "invalid_repository", match="is not a model repository"):
        open_repository(address)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    assert isinstance(open_repository(str(tmp_path / "models")), DirectoryRepository)


NOBODY = 65534


@pytest.fixture
def unwritable() -> Iterator[Path]:
    """An empty folder in which this process may make nothing; root is somebody else meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    folder.chmod(0o555)
    if is_root := os.geteuid() == 0:
        os.seteuid(NOBODY)
    yield folder
    if is_root:
        os.seteuid(0)
    folder.chmod(0o700)
    folder.rmdir()


def test_an_empty_volume_has_no_models(unwritable: Path) -> None:
    repository = DirectoryRepository(unwritable)
    assert list(repository.list()) == []
    with refused(404):
        repository.get("resnet50@1")
    assert list(unwritable.iterdir()) == []
