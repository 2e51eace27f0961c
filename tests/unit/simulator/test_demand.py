"""A file of demand is read whichever kind it is, and a bad one names its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_simulator.arrivals import read_demand, recorded, stretch
from gnomon_simulator.traces import Trace, read_trace


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t_seconds,count\n0,3\n1,4\n", Trace(1.0, (3.0, 4.0))),
        ("t_seconds,a,b\n0,3,1\n1,4,1\n", Trace(1.0, (4.0, 5.0))),
        ("t_seconds,count\n0,3\n\n1,4\n\n", Trace(1.0, (3.0, 4.0))),
        ("0.5\n1.5\n\n2.25\n", [0.5, 1.5, 2.25]),
        ("# seconds\n0.5\n1.5  # late\n", [0.5, 1.5]),
        ("[0.5, 1.5]", [0.5, 1.5]),
        ('{"times_s": [0.5, 1.5]}', [0.5, 1.5]),
        ('{\n "bin_s": 60,\n "counts": [3, 4]\n}', Trace(60.0, (3.0, 4.0))),
        ('{"id": 1, "sent_s": 2.0}\n{"id": 2, "sent_s": 1.0}\n', [1.0, 2.0]),
        ('{"id": 1, "sent_s": 2.0}\n', [2.0]),
        ("", []),
        ("\ufefft_seconds,count\n0,3\n1,4\n", Trace(1.0, (3.0, 4.0))),
        ("1700158546000\n1700158547500\n", [0.0, 1.5]),
        ("[1700158546000, 1700158547500]", [0.0, 1.5]),
        ('["2023-11-16T18:15:46Z", "2023-11-16T18:15:47.5Z"]', [0.0, 1.5]),
        ('{"times_s": [1700158546.25, 1700158546.5]}', [0.0, 0.25]),
        ("t_seconds,count\n1700158560,3\n1700158620,4\n", Trace(60.0, (3.0, 4.0))),
        ("1700158546.25\n1700158546.5\n", [0.0, 0.25]),
        ("2023-11-16T18:15:46Z\n2023-11-16T19:15:47.5+01:00\n", [0.0, 1.5]),
        # Azure Functions 2019
        ("HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,a,f,http,1,0,2\no,a,g,timer,1,1,1\n", Trace(60.0, (2.0, 1.0, 3.0))),
        # Azure Functions 2021: by the end, and how long it took
        ("app,func,end_timestamp,duration\na,f,3.0,1.0\na,g,2.5,2.0\n", [0.5, 2.0]),
        # Azure's LLM traces
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.6805900,374\n2023-11-16 18:15:50.9951690,396\n", [0.0, 4.314579]),
        ("Timestamp;Model\n5;b\n1;a\n", [1.0, 5.0]),
        ("id\tarrival_time_ms\nx\t1500\n\ny\t250\n", [0.25, 1.5]),
        ("Minutes,Invocations\n0,3\n1,4\n3,5\n", Trace(60.0, (3.0, 4.0, 0.0, 5.0))),
        ("time,function,count\n0,f,3\n0,g,1\n10,f,4\n", Trace(10.0, (4.0, 4.0))),
        ("timestamp,requests\n2024-01-01 00:00,3\n2024-01-01 00:05,4\n", Trace(300.0, (3.0, 4.0))),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_kind_is_recognised(text: str, expected: Trace | list[float], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"demand{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    found = read_demand(path)
    assert found == (expected if isinstance(expected, Trace) else pytest.approx(expected, abs=1e-6))


def test_a_column_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "functions.csv"
    path.write_text("t_seconds,a,b\n0,3,1\n1,4,2\n")
    assert read_demand(path, "b") == Trace(1.0, (1.0, 2.0))
    path.write_text("app,func,end_timestamp,duration\na,f,3.0,1.0\na,g,2.5,2.0\n")
    assert read_demand(path, "g") == [0.5]
    with pytest.raises(GnomonError, match="has no 'h'") as refused:
        read_demand(path, "h")
    assert refused.value.hint == "It has f, g."
    path.write_text("timestamp\n1\n")
    with pytest.raises(GnomonError, match="whose a row is"):
        read_demand(path, "f")
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
        ("t_seconds,count\n0,nan\n", "NaN"),
        ("t_seconds,count\n0,inf\n", "infinite"),
        ('{"bin_s": 0, "counts": [1, 2]}', "A bin of 0.0 s"),
        ('{"bin_s": NaN, "counts": [1, 2]}', "A bin of nan s"),
        ('{"bin_s": 1, "counts": [1, -2]}', "negative"),
        ("\x00\xff", "neither"),
        ("name,colour\na,b\n", "no column of times"),
        ("timestamp,model\n1.5,a\nsoon,b\n", "line 3 is not a row"),
        ("\ntimestamp,count\n1,2\n2\n", "line 4 is not a row"),
        ("timestamp,count\n", "there is no row"),
        ("t_seconds,count\n0,1\n1e-9,1\n1e9,1\n", "in bins of 1e-09"),
        ('{"timestamp": 1.0}\n{"timestamp": 2.0}\n', "sent_s"),
        ("[" * 100_000, "neither counts"),
        ('{"bin_s": 1, "counts": [1, ' + "1" * 400 + "]}", "neither counts"),
        ('{"id": 1}\n{"sent_s": ' + "1" * 400 + "}\n", "line 2"),
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


def test_gzipped_text_that_is_damaged_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"1.0\n2.0\n3.0\n"))
    packed[10] = 0xFF  # a kind of block that deflate has not
    path = tmp_path / "demand.gz"
    path.write_bytes(packed)
    for read in (read_demand, read_trace, recorded):
        with pytest.raises(GnomonError, match="gzipped"):
            read(path)


def test_a_stretch_begins_at_second_0() -> None:
    assert stretch([1.0, 5.0, 6.0, 20.0], 5.0, 10.0) == [0.0, 1.0]
    assert stretch([1.0, 5.0]) == [1.0, 5.0]
    assert stretch(Trace(1.0, (1.0, 2.0, 3.0)), 1.0, 1.0) == Trace(1.0, (2.0,))
