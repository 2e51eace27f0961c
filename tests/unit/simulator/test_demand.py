"""A file of demand is read whichever kind it is, and a bad one names its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_simulator.demand import read_demand, stretch
from gnomon_simulator.traces import Trace


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t_seconds,count\n0,3\n1,4\n", Trace(1.0, (3.0, 4.0))),
        ("t_seconds,a,b\n0,3,1\n1,4,1\n", Trace(1.0, (4.0, 5.0))),
        ("0.5\n1.5\n\n2.25\n", [0.5, 1.5, 2.25]),
        ("# seconds\n0.5\n1.5  # late\n", [0.5, 1.5]),
        ("[0.5, 1.5]", [0.5, 1.5]),
        ('{"times_s": [0.5, 1.5]}', [0.5, 1.5]),
        ('{\n "bin_s": 60,\n "counts": [3, 4]\n}', Trace(60.0, (3.0, 4.0))),
        ('{"id": 1, "sent_s": 2.0}\n{"id": 2, "sent_s": 1.0}\n', [1.0, 2.0]),
        ('{"id": 1, "sent_s": 2.0}\n', [2.0]),
        ("", []),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_kind_is_recognised(text: str, expected: Trace | list[float], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"demand{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    assert read_demand(path) == expected


def test_a_column_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "functions.csv"
    path.write_text("t_seconds,a,b\n0,3,1\n1,4,2\n")
    assert read_demand(path, "b") == Trace(1.0, (1.0, 2.0))
    path.write_text("0.5\n")
    with pytest.raises(GnomonError, match="no columns"):
        read_demand(path, "b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.0\nsoon\n", "line 2"),
        ("[1, 2", "line 1 is not JSON"),
        ('{"counts": [1]}', "bin_s"),
        ('{"id": 1}\n{"sent_s": "x"}\n', "line 2"),
        ('["soon"]', "times_s"),
        ("t_seconds,count\n0,x\n", "line 2"),
        ("\x00\xff", "neither"),
    ],
)
def test_a_bad_file_says_where(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "demand.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(GnomonError, match=words):
        read_demand(path)


def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "demand.gz"
    path.write_text("1.0\n")
    with pytest.raises(GnomonError, match="gzipped"):
        read_demand(path)


def test_a_stretch_begins_at_second_0() -> None:
    assert stretch([1.0, 5.0, 6.0, 20.0], 5.0, 10.0) == [0.0, 1.0]
    assert stretch([1.0, 5.0]) == [1.0, 5.0]
    assert stretch(Trace(1.0, (1.0, 2.0, 3.0)), 1.0, 1.0) == Trace(1.0, (2.0,))
