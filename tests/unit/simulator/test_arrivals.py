"""Arrivals and traces."""

import gzip
import json
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation.markov import markov_arrivals
from gnomon_core.errors import GnomonError
from gnomon_planner.maps import Map
from gnomon_planner.samples import sample_of_times
from gnomon_simulator.arrivals import constant, from_trace, poisson, read_demand, recorded, selected, stretch
from gnomon_simulator.events import stream
from gnomon_simulator.traces import Trace, read_trace
from tests.processes import superposed
from tests.refusals import refused


def test_every_bin_gets_its_requests() -> None:
    arrivals = from_trace(Trace(0.5, (3, 0, 2)), stream(1, "arrivals"))
    assert Counter(int(time_s / 0.5) for time_s in arrivals) == {0: 3, 2: 2}
    assert list(arrivals) == sorted(arrivals)


def test_within_a_bin_they_are_uniform() -> None:
    arrivals = from_trace(Trace(10.0, (40_000,)), stream(1, "arrivals"))
    # The mean of 40,000 uniform numbers over 10 s deviates by 0.0144 s (one sigma), their standard deviation is 10/√12.
    assert statistics.fmean(arrivals) == pytest.approx(5.0, abs=0.06)
    assert statistics.pstdev(arrivals) == pytest.approx(2.887, abs=0.03)


def test_a_fraction_of_a_request_comes_with_its_probability() -> None:
    arrivals = from_trace(Trace(1.0, (2.25,) * 4000), stream(1, "arrivals"))
    assert set(Counter(int(time_s) for time_s in arrivals).values()) == {2, 3}
    assert len(arrivals) / 4000 == pytest.approx(2.25, abs=0.03)


def test_poisson_has_its_rate_and_its_spread() -> None:
    arrivals = poisson(50.0, 1000.0, stream(1, "arrivals"))
    seconds = Counter(int(time_s) for time_s in arrivals)
    assert max(arrivals) < 1000.0
    assert len(arrivals) == pytest.approx(50_000, rel=0.02)
    counts = [seconds[second] for second in range(1000)]
    assert statistics.pvariance(counts) / statistics.fmean(counts) == pytest.approx(1.0, abs=0.15)


def test_a_constant_rate_stays_exact_for_hours() -> None:
    arrivals = constant(3.0, 3 * 3600.0)
    assert len(arrivals) == 3 * 3 * 3600
    assert arrivals[3 * 3600 * 2] == 7200.0


@pytest.mark.parametrize(("rate", "duration"), [(0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (1.0, -1.0), (1.0, float("inf"))])
def test_impossible_rates_are_refused(rate: float, duration: float) -> None:
    with pytest.raises(GnomonError):
        constant(rate, duration)


@pytest.mark.timeout(20)
def test_a_mistyped_rate_is_refused_before_it_takes_all_memory(tmp_path: Path) -> None:
    many = tmp_path / "many.csv"
    many.write_text("t_seconds,count\n0,1e12\n1,1e12\n")
    for draw in (
        lambda: constant(1e9, 3600.0),
        lambda: poisson(1e9, 3600.0, stream(1, "arrivals")),
        lambda: from_trace(read_trace(many), stream(1, "arrivals")),
    ):
        with refused(code="too_many_arrivals", match="requests are more than"):
            draw()


def test_streams_differ_by_purpose_and_by_seed_and_in_nothing_else() -> None:
    assert stream(1, "arrivals").random() == stream(1, "arrivals").random()
    assert len({stream(1, "arrivals").random(), stream(1, "noise").random(), stream(2, "arrivals").random()}) == 3


def test_a_recorded_run_arrives_when_it_was_sent(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    rows = [
        {"format": "gnomon-replay/1"},
        *({"intended_s": time_s, "sent_s": sent} for time_s, sent in [(0.1, 0.2), (0.3, None), (0.0, 0.01)]),
    ]
    record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert recorded(record) == [0.01, 0.2]
    record.write_text("{}\nx\n")
    with pytest.raises(GnomonError, match="line 2"):
        recorded(record)


def test_a_selected_stretch_begins_at_second_0() -> None:
    assert selected([0.0, 1.0, 2.0, 3.0], 1.0, 2.0) == [0.0, 1.0]


PROCESSES = [
    Map.poisson(40.0),
    Map.mmpp2((10.0, 200.0), (5.0, 5.0)),
    Map.from_json({"D0": [[-10.1, 0.0], [0.0, -202.0]], "D1": [[0.1, 10.0], [200.0, 2.0]]}),
    superposed(Map.mmpp2((0.0, 100.0), (20.0, 30.0)), Map.mmpp2((5.0, 30.0), (2.0, 8.0))),
]


@pytest.mark.parametrize("process", PROCESSES)
def test_samples_have_the_statistics_of_the_process(process: Map) -> None:
    times = markov_arrivals(process, 200_000, np.random.default_rng(3))
    assert len(times) == 200_000
    sample = sample_of_times(times)
    assert sample.rate_rps == pytest.approx(process.rate_rps, rel=0.02)
    assert sample.gaps.scv.value == pytest.approx(process.scv, rel=0.04)
    assert sample.gaps.skewness.value == pytest.approx(process.skewness, rel=0.08)
    for lag, found in zip(sample.gaps.lags, sample.gaps.correlations, strict=True):
        assert found.value == pytest.approx(process.autocorrelation(lag), abs=5 * found.deviation + 0.003)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    first, second = (markov_arrivals(PROCESSES[1], 5000, np.random.default_rng(11)) for _ in range(2))
    assert (first == second).all()
    assert (np.diff(first) >= 0.0).all()


def test_few_arrivals_of_a_process_that_mostly_rests() -> None:
    times = markov_arrivals(Map.mmpp2((0.0, 1.0), (1.0, 50.0)), 30, np.random.default_rng(1))
    assert len(times) == 30
    assert times[0] > 0.0


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
def test_invalid_trace_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
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
        # Mooncake's LLM traces
        ('{"timestamp": 0, "hash_ids": [1]}\n{"timestamp": 1500, "hash_ids": [1, 2]}\n', [0.0, 1.5]),
        ('{"time_ms": 1500, "id": 1}\n\n{"id": 2, "time_ms": 500}\n', [0.5, 1.5]),
        ('{"minute": 0, "count": 3}\n{"minute": 1, "count": 4}\n', Trace(60.0, (3.0, 4.0))),
        # A second a line, as WITS' and Twitter's traces are often passed on
        ("3\n0\n7\n2\n", Trace(1.0, (3.0, 0.0, 7.0, 2.0))),
        ("0\n0\n9\n0\n0\n0\n0\n0\n", Trace(1.0, (0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0))),
        ("0.61\n0.58\n0.7\n", Trace(1.0, (0.61, 0.58, 0.7))),
        ("requests\n3\n4\n", Trace(1.0, (3.0, 4.0))),
        ("1.0\n2.5\n2.0\n3.0\n4.0\n", [1.0, 2.5, 2.0, 3.0, 4.0]),
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
    with pytest.raises(GnomonError, match="has no column of functions"):
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
        ('{"sent_s": 1}\n{"sent_s": "x"}\n', "line 2"),
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
        ('{"sent_s": null}\n{"sent_s": null}\n', "no request that was sent"),
        ('{"id": 1}\n{"id": 2}\n', "no column of times"),
        ('{"timestamp": 1}\n{"time": 2}\n', "line 2 is not a JSON object with the names"),
        ('{"timestamp": 1}\n[2]\n', "line 2 is not a JSON object"),
        ('{"timestamp": 1}\n{"timestamp": null}\n', "line 2 is not a row"),
        ("[" * 100_000, "neither counts"),
        ('{"bin_s": 1, "counts": [1, ' + "1" * 400 + "]}", "neither counts"),
        ('{"sent_s": 1}\n{"sent_s": ' + "1" * 400 + "}\n", "line 2"),
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
