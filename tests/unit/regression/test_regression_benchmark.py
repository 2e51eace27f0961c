"""The regression's benchmark: where quotas are set, what is measured first, what is kept, and how it is judged."""

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.regression.cells import (
    BATCHES,
    MEMORIES_MB,
    TRAINED_VISITS,
    Grid,
    Kept,
    Times,
    Visit,
    cores_of,
    figures,
    judged,
    table,
    threads_of,
)
from benchmarks.regression.measuring import Hierarchy, NoQuotaError, Quota, hierarchy_of
from gnomon_planner.service_time import SHARE

IDENTITY = {"model": "m@1"}
V1 = "proc /proc proc rw 0 0\ncgroup {place} cgroup rw,relatime,cpu,cpuacct 0 0\n"
V2 = "cgroup2 {place} cgroup2 rw,nosuid 0 0\n"


def service_s(memory_mb: int, batch: int) -> float:
    return (0.002 * threads_of(memory_mb) + 0.02 * batch) / cores_of(memory_mb)


def kept_times(memory_mb: int, batch: int) -> Times:
    seconds = service_s(memory_mb, batch)
    return Times(tuple(seconds * (1.0 + step / 1000.0) for step in range(-5, 6)), (seconds * cores_of(memory_mb),) * 11)


def test_every_cell_is_visited_in_every_round_and_those_trained_on_more_often() -> None:
    grid = Grid.of(MEMORIES_MB, BATCHES, SHARE)
    assert (len(MEMORIES_MB), len(BATCHES), len(grid.cells), len(set(grid.cells))) == (46, 20, 920, 920)
    assert len(grid.trained) <= 27
    visits = grid.visits(2)
    assert visits == Grid.of(MEMORIES_MB, BATCHES, SHARE).visits(2), "an interrupted run goes on in the same order"
    assert visits == grid.visits(5)[: len(visits)]
    assert [visit.number for visit in visits] == list(range(len(visits)))
    rounds = [[visit.cell for visit in visits if visit.round == number] for number in (0, 1)]
    for cells in rounds:
        assert Counter(cells) == {cell: TRAINED_VISITS if cell in grid.trained else 1 for cell in grid.cells}
    assert rounds[0] != rounds[1]
    assert cores_of(3008) == pytest.approx(1.70, abs=0.005)
    assert (threads_of(1769), threads_of(1792)) == (1, 2)


def test_a_median_knows_how_well_it_is_known() -> None:
    assert Times((1.0,) * 10, ()).uncertainty == 0.0
    few, many = (Times(tuple(1.0 + (place % 10) / 10 for place in range(count)), ()) for count in (10, 1000))
    assert 0.0 < many.uncertainty < few.uncertainty < 0.5


def test_an_interrupted_run_goes_on_and_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    visits = Grid.of((442, 885, 1769, 1856, 2560, 3008), (1, 2, 3, 4), 0.7).visits(2)
    kept = Kept(path, IDENTITY)
    for visit in visits[:3]:
        kept.add(visit, kept_times(*visit.cell))
    with path.open("a") as file:
        file.write('{"number": 3, "cell": [442, ')
    again = Kept(path, IDENTITY)
    assert again.missing(visits) == visits[3:]
    again.add(visits[3], kept_times(*visits[3].cell))
    assert Kept(path, IDENTITY).missing(visits) == visits[4:]
    assert Kept(path, {"model": "another"}).missing(visits) == visits, "what was measured of something else is not gone on with"


def test_the_runs_of_a_cell_are_those_of_all_its_visits(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept.jsonl", IDENTITY)
    kept.add(Visit(0, 0, (128, 1)), Times((1.0, 1.2), (0.1, 0.1)))
    kept.add(Visit(9, 4, (128, 1)), Times((1.4,), (0.2,)))
    assert kept.cells() == {(128, 1): Times((1.0, 1.2, 1.4), (0.1, 0.1, 0.2))}
    assert kept.cells(range(1, 5)) == {(128, 1): Times((1.4,), (0.2,))}


def test_cells_that_follow_the_model_are_told_and_the_figures_say_all_there_is(tmp_path: Path) -> None:
    grid = Grid.of(MEMORIES_MB, BATCHES, SHARE)
    kept = Kept(tmp_path / "kept.jsonl", IDENTITY)
    for visit in grid.visits(2):
        later = 1.03 if visit.round == 1 else 1.0
        kept.add(visit, Times(tuple(later * one for one in kept_times(*visit.cell).seconds), (0.1,) * 11))
    assert judged(grid, kept).mean < 1e-3
    assert judged(grid, kept, whole=None).mean > 0.003
    by_key = {figure.key: figure for figure in figures(grid, kept, 2, "m@1", "20 ms periods")}
    assert by_key["mean_error"].met == "met"
    assert f"of 920 cells trained, {920 - len(grid.trained)} others; medians of 22 runs" in by_key["mean_error"].detail
    assert by_key["repeatability"].value == pytest.approx(0.03)
    assert len(table(kept).splitlines()) == 921


def test_a_model_that_is_wrong_misses_the_goal(tmp_path: Path) -> None:
    grid = Grid.of(MEMORIES_MB, BATCHES, SHARE)
    kept = Kept(tmp_path / "kept.jsonl", IDENTITY)
    for visit in grid.visits(1):
        times = kept_times(*visit.cell)
        factor = 1.0 if visit.cell in grid.trained else 1.1
        kept.add(visit, Times(tuple(factor * one for one in times.seconds), times.core_s))
    found = figures(grid, kept, 1, "m@1", "20 ms periods")[0]
    assert found.met == "missed"
    assert found.value == pytest.approx(0.1 / 1.1, rel=0.01)


def test_a_group_is_made_below_our_own_by_the_version_that_controls_processor_time(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "ours").mkdir(parents=True)
    old, new = V1.format(place=tmp_path / "cpu"), V2.format(place=tmp_path / "unified")
    own = "3:cpu,cpuacct:/ours\n0::/session\n"
    assert hierarchy_of(new + old, own) == Hierarchy(tmp_path / "cpu" / "ours", unified=False)
    assert hierarchy_of(old, "0::/\n") == Hierarchy(tmp_path / "cpu", unified=False)
    (tmp_path / "unified" / "session").mkdir(parents=True)
    assert hierarchy_of(new, own) == Hierarchy(tmp_path / "unified" / "session", unified=True)
    assert hierarchy_of("proc /proc proc rw 0 0\n", own) is None


@pytest.mark.parametrize("unified", [False, True])
def test_a_quota_is_written_as_the_kernel_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, unified: bool) -> None:
    """Half a core is 10 ms in every 20 ms. A plain folder keeps what was written."""
    (tmp_path / "cgroup.subtree_control").write_text("memory cpu\n")
    removed: list[Path] = []

    def keep(folder: Path) -> None:
        removed.append(folder)

    monkeypatch.setattr(Path, "rmdir", keep)
    with Quota(20_000, Hierarchy(tmp_path, unified)) as quota:
        (group,) = (path for path in tmp_path.iterdir() if path.is_dir())

        def written() -> str:
            return (group / ("cpu.max" if unified else "cpu.cfs_quota_us")).read_text()

        assert written() == ("max 20000" if unified else "-1")
        quota.set(0.5)
        assert written() == ("10000 20000" if unified else "10000")
        with pytest.raises(ValueError, match="at least 1000"):
            quota.set(0.04)
        quota.join(17)
        assert (group / "cgroup.procs").read_text() == "17"
    assert removed == [group]


def test_a_machine_that_forbids_it_says_how_it_could_be_allowed(tmp_path: Path) -> None:
    with pytest.raises(NoQuotaError, match="Run as root"), Quota(20_000, Hierarchy(tmp_path / "missing", unified=False)):
        pass


def test_kept_results_are_readable(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    Kept(path, IDENTITY).add(Visit(0, 0, (128, 1)), Times((0.1, 0.2), (0.01, 0.01)))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        IDENTITY,
        {"number": 0, "round": 0, "cell": [128, 1], "seconds": [0.1, 0.2], "core_s": [0.01, 0.01]},
    ]
