"""Traces are read as they were written, whatever their bin."""

import gzip
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_simulator.traces import Trace, read_trace


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
@pytest.mark.parametrize(
    ("text", "bin_s", "counts"),
    [
        ("t_seconds,count\n0,44\n1,46\n2,0\n", 1.0, (44, 46, 0)),
        ("t_seconds,count\n0.0,3\n0.1,7\n0.2,1\n0.3,2\n", 0.1, (3, 7, 1, 2)),
        ("t_seconds,count\n0,5\n120,7\n180,1\n", 60.0, (5, 0, 7, 1)),
        # Not whole bins apart, so the nearest, to even: 2.5 is bin 2, 3.5 is bin 4.
        ("t_seconds,count\n0,5\n60,7\n150,1\n210,2\n", 60.0, (5, 7, 1, 0, 2)),
    ],
)
def test_bins_are_found_and_missing_ones_are_empty(
    tmp_path: Path, name: str, text: str, bin_s: float, counts: tuple[int, ...]
) -> None:
    trace = read_trace(write(tmp_path, text, name))
    assert (trace.bin_s, trace.counts) == (bin_s, counts)


def test_a_function_s_column_is_chosen_by_name_and_all_are_summed_without_one(tmp_path: Path) -> None:
    path = write(tmp_path, "t_seconds,f0,f1\n0,1,10\n60,2,20\n")
    assert read_trace(path, "f1").counts == (10, 20)
    assert read_trace(path).counts == (11, 22)
    assert read_trace(path, "f0").requests == 3
    with pytest.raises(GnomonError, match="f0, f1"):
        read_trace(path, "f2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1"),
        ("time,count\n0,1\n", "line 1"),
        ("t_seconds,count\n", "no row"),
        ("t_seconds,count\n0,1\n1\n", "line 3"),
        ("t_seconds,count\n0,1\n1,x\n", "line 3"),
        ("t_seconds,count\n0,1\n1,-2\n", "line 3"),
        ("t_seconds,count\n0,1\n1,1,1\n", "line 3"),
        ("t_seconds,count\n0,1\n0,2\n", "line 3"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(GnomonError, match=said):
        read_trace(write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GnomonError, match=r"nothing\.csv"):
        read_trace(tmp_path / "nothing.csv")


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_moments_since_1970_are_moved_to_second_0(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, "t_seconds,a,b\n1700000040,1,2\n1700000100,3,4\n1700000160,5,6\n", f"trace{suffix}")
    assert read_trace(path).slice(60.0, 60.0).counts == (7,)
    assert read_trace(path, "b").slice(120.0) == Trace(60.0, (6,))


def test_a_stretch_begins_at_second_0_again() -> None:
    trace = Trace(10.0, (1, 2, 3, 4, 5))
    assert trace.slice(20.0, 20.0) == Trace(10.0, (3, 4))
    assert trace.slice(30.0).counts == (4, 5)
    with pytest.raises(GnomonError, match="50 seconds"):
        trace.slice(60.0)


def test_scaling_keeps_the_shape() -> None:
    assert Trace(1.0, (4, 2)).scaled(0.25).counts == (1.0, 0.5)
