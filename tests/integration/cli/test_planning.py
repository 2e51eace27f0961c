"""Plans, predictions and fitted arrivals by the command line."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation.markov import markov_arrivals
from gnomon_cli.commands.planning import EC2
from gnomon_planner import billing
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from tests.integration.cli.conftest import Recorder, Run

SERVICE = ("--service-ms", "40,52,64,76")


def run(*arguments: str | float | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from gnomon_cli.main import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def planned(*arguments: str | float | Path) -> subprocess.CompletedProcess[str]:
    return run("plan", *arguments)


def predicted(*arguments: str | float | Path) -> subprocess.CompletedProcess[str]:
    return run("predict", *arguments)


def fitted(*arguments: str | float | Path) -> subprocess.CompletedProcess[str]:
    return run("fit-arrivals", *arguments)


def test_a_plan_and_why_its_neighbours_lost() -> None:
    done = planned("--rate", 50, *SERVICE, "--slo-ms", 200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Plan: 1 core, 1769 MB, B = 4")
    for word in ("P95", "per million requests", "P99.9", "NEIGHBOUR", "costs 14.0% more"):
        assert word in done.stdout


def test_json_from_counts_to_a_plan_that_holds_what_it_says(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    counts = np.random.default_rng(3).poisson(50.0, 600)
    trace.write_text("t_seconds,count\n" + "".join(f"{second},{count}\n" for second, count in enumerate(counts)))
    done = planned("--trace", trace, *SERVICE, "--slo-ms", 150, "--percentile", 99, "--json", "--plot", tmp_path / "plan.png")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    plan = document["plan"]
    buffer = BufferPlan(plan["batch"], plan["timeout_ms"] / 1e3)
    service = ServiceTimes.fixed([0.040, 0.052, 0.064, 0.076][: buffer.batch])
    latency = ExactLatency(Map.from_json(document["arrivals"]), buffer, service)
    assert latency.percentile(99) * 1e3 == pytest.approx(plan["latency_ms"], rel=1e-6)
    assert document["percentiles_ms"]["99"] == pytest.approx(plan["latency_ms"])
    assert plan["latency_ms"] <= 150
    assert document["front"][0]["latency_ms"] < document["front"][-1]["latency_ms"]
    assert document["fit"]["family"] == "Poisson"
    assert document["fit"]["misfit"]["total"] < 2.0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_batch_that_waits_until_it_is_full_is_json_too() -> None:
    done = planned("--rate", 50, *SERVICE, "--slo-ms", 500, "--timeouts-ms", "inf", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert document["plan"]["timeout_ms"] is None


def test_cells_of_bytes_instead_of_megabytes_are_refused_at_once(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.json"
    cells = [{"memory_mb": memory, "batch": batch, "ms": 40} for memory in (1024 << 20, 2048 << 20) for batch in (1, 2)]
    sizes.write_text(json.dumps({"measured": cells}))
    done = planned("--rate", 50, "--sizes", sizes, "--slo-ms", 500, "--platform", "held")
    assert done.returncode == 2
    assert "more than 1000 sizes" in done.stderr


def test_a_profile_is_planned_with_held_instances(tmp_path: Path) -> None:
    profile = Path(__file__).parents[3] / "profiles" / "resnet50.json"
    done = planned("--rate", 20, "--profile", profile, "--slo-ms", 1500, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["instances"] >= 1


@pytest.mark.parametrize("sizes", [[], [{"memory_mb": 1769, "service_ms": []}]])
def test_sizes_that_offer_nothing_are_refused(tmp_path: Path, sizes: list[object]) -> None:
    file = tmp_path / "sizes.json"
    file.write_text(json.dumps({"sizes": sizes}))
    done = planned("--rate", 20, "--sizes", file, "--slo-ms", 500)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: There are no sizes, batches or timeouts to choose from")


def test_a_text_is_no_list_of_service_times(tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    file.write_text(json.dumps({"sizes": [{"memory_mb": 1769, "service_ms": "123"}]}))
    done = planned("--rate", 20, "--sizes", file, "--slo-ms", 500)
    assert done.returncode == 2
    assert "no list of numbers" in done.stderr


@pytest.mark.parametrize("size", ["1" * 400, "Infinity"])
def test_sizes_beyond_all_bounds_are_refused(tmp_path: Path, size: str) -> None:
    cells = ", ".join(
        f'{{"memory_mb": {memory_mb}, "batch": {batch}, "ms": 40}}' for memory_mb in (512, size) for batch in (1, 2)
    )
    for name, text in (("sizes", f'[{{"memory_mb": {size}, "service_ms": [40]}}]'), ("measured", f"[{cells}]")):
        file = tmp_path / f"{name}.json"
        file.write_text(f'{{"{name}": {text}}}')
        done = planned("--rate", 20, "--sizes", file, "--slo-ms", 500)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert done.stderr.startswith("Error: ")


def test_measured_cells_become_sizes(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    cells = [
        {"memory_mb": memory, "batch": batch, "ms": (10 + 20 * batch) * 1769 / memory}
        for memory in (1024, 1536, 2048, 3008)
        for batch in (1, 4, 8)
    ]
    file.write_text(json.dumps({"measured": cells}))
    done = planned("--rate", 50, "--sizes", file, "--budget", 3, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["usd_per_million"] <= 3
    assert done.stderr.startswith("Service times by 12 cells: ")
    assert "coefficients; off by 0.0% in the mean" in done.stderr


def test_measured_cells_may_be_of_cores(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    cells = [
        {"cores": cores, "batch": batch, "ms": (10 + 20 * batch) * (0.1 + 0.9 / cores)}
        for cores in (1, 2, 4, 8)
        for batch in (1, 3, 6)
    ]
    file.write_text(json.dumps({"measured": cells}))
    done = planned("--rate", 50, "--sizes", file, "--platform", "held", "--max-batch", 1, "--slo-ms", 12, "--json")
    plan = json.loads(done.stdout)["plan"]
    # 30 ms alone on one core; three take 12.0 ms, which are the first within 12 ms.
    assert (plan["cores"], plan["latency_ms"]) == (3, pytest.approx(12.0, rel=0.01))


def test_measured_cores_that_lambda_does_not_sell_are_not_planned_there(tmp_path: Path) -> None:
    """Six cores would be 10,614 MB, of 10,240 at most."""
    file = tmp_path / "cells.json"

    def planned_on(cores: tuple[int, ...], *more: str) -> subprocess.CompletedProcess[str]:
        cells = [
            {"cores": core_count, "batch": batch, "ms": (10 + 20 * batch) * (0.1 + 0.9 / core_count)}
            for core_count in cores
            for batch in (1, 3, 6)
        ]
        file.write_text(json.dumps({"measured": cells}))
        return planned("--rate", 50, "--sizes", file, "--max-batch", 1, "--slo-ms", 7, "--json", *more)

    assert json.loads(planned_on((1, 2, 4, 8)).stdout)["plan"]["cores"] == 5
    assert json.loads(planned_on((1, 2, 4, 8), "--platform", "held").stdout)["plan"]["cores"] > 5
    none = planned_on((6, 8, 12))
    assert (none.returncode, "no measured size fits into an instance of Lambda" in none.stderr) == (2, True)


def test_batches_without_service_times_are_no_part_of_the_plan_and_that_is_said() -> None:
    arguments = ("--rate", 50, *SERVICE, "--slo-ms", 200)
    assert "not 16: longer ones have no known service time" in planned(*arguments, "--max-batch", 16).stderr
    assert planned(*arguments).stderr == ""


def test_service_times_that_varied_are_planned_for_as_they_did(tmp_path: Path) -> None:
    """Runs of a profile on Lambda, half of them a fifth slower: P95 is the slower half's."""
    file = tmp_path / "lambda.json"
    cells = [
        {"memory_mb": memory, "batch": batch, "seconds": (0.01 + 0.02 * batch) * 1769 / memory}
        for memory in (1024, 1536, 2048, 3008)
        for batch in (1, 4, 8)
    ]
    measured = [{"memory_mb": cell["memory_mb"], "batch": cell["batch"], "ms": 1e3 * cell["seconds"]} for cell in cells]
    runs = [{"runs_s": [cell["seconds"]] * 6 + [1.2 * cell["seconds"]] * 5} for cell in cells]
    found = {}
    for name, document in (("usual", {"measured": measured}), ("varying", {"measured": measured, "cells": runs})):
        file.write_text(json.dumps(document))
        done = planned("--rate", 50, "--sizes", file, "--max-batch", 1, "--timeouts-ms", "10", "--slo-ms", 1, "--json")
        assert done.returncode == 1, done.stderr
        found[name] = json.loads(done.stdout)["plan"]
    assert found["varying"]["memory_mb"] == found["usual"]["memory_mb"]
    assert found["varying"]["latency_ms"] == pytest.approx(1.2 * found["usual"]["latency_ms"])
    size_row = {"memory_mb": 1769, "service_ms": [40, 52], "ratios": [1, 1.5]}
    file.write_text(json.dumps({"sizes": [size_row]}))
    done = planned("--rate", 50, "--sizes", file, "--max-batch", 1, "--slo-ms", 100, "--json")
    assert json.loads(done.stdout)["plan"]["latency_ms"] == pytest.approx(60.0)


def test_sizes_may_have_any_number_of_measured_ratios(tmp_path: Path) -> None:
    """100, 97 and 91 have no common multiple below 882,700."""
    file = tmp_path / "sizes.json"
    sizes = [
        {"memory_mb": 1024 * number, "service_ms": [40, 52], "ratios": [1.0] * (count - 10) + [1.5] * 10}
        for number, count in enumerate((100, 97, 91), start=1)
    ]
    file.write_text(json.dumps({"sizes": sizes}))
    done = planned("--rate", 50, "--sizes", file, "--max-batch", 1, "--slo-ms", 100, "--json")
    assert done.returncode == 0, done.stderr
    sizes[0]["ratios"] = [1.0, -1.0]
    file.write_text(json.dumps({"sizes": sizes}))
    done = planned("--rate", 50, "--sizes", file, "--slo-ms", 100)
    assert (done.returncode, "ratios of a size are not positive numbers" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("0\n1\n", 0, "1 arrivals or gaps say how quickly requests arrive, not how evenly: Poisson."),
        ("".join(f"{second / 10}\n" for second in range(400)), 0, "The gaps are more regular"),
        ("7\n7\n7\n", 1, "rate is infinite"),
        ("7\n", 1, "arrival"),
    ],
    ids=["two arrivals", "equal gaps", "all at once", "one arrival"],
)
def test_plan_reports_unusable_traces_like_fit_arrivals(tmp_path: Path, text: str, code: int, words: str) -> None:
    file = tmp_path / "stamps.txt"
    file.write_text(text)
    done = planned("--trace", file, *SERVICE, "--slo-ms", 1500)
    assert done.returncode == code
    assert words in done.stderr
    fit_arrivals = [sys.executable, "-c", "from gnomon_cli.main import main; main()", "fit-arrivals", str(file)]
    fitted = subprocess.run(fit_arrivals, capture_output=True, text=True, check=False, timeout=60)
    assert (fitted.returncode, fitted.stderr) == (done.returncode, done.stderr)


def test_a_person_reads_how_well_the_arrivals_were_fitted() -> None:
    trace = Path(__file__).parents[3] / "benchmarks" / "traces" / "twitter_may25_1s.csv.gz"
    done = planned("--trace", trace, "--start", "11h", "--duration", "1h", *SERVICE, "--slo-ms", 200)
    assert "requests/s, MMPP(2) of counts, misfit " in done.stdout


def test_more_instances_than_can_be_counted_name_the_nearest_plan() -> None:
    done = planned("--rate", 1e7, *SERVICE, "--platform", "held", "--slo-ms", 1500)
    assert done.returncode == 2
    assert "More than 10000 instances would be busy at once; the nearest, 1 core, 1769 MB, B = 4" in done.stderr


def test_instances_may_pay_for_their_share_of_a_machine_of_ec2() -> None:
    done = planned("--rate", 20, *SERVICE, "--cores", 2, "--price", "ec2:c5.4xlarge", "--slo-ms", 1500, "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    # 16 cores are $0.68 an hour.
    assert plan["usd_per_million"] == pytest.approx(plan["instances"] * 2 / 16 * 0.68 / 3600 / 20 * 1e6)
    assert tuple(f"ec2:{machine}" for machine in billing.EC2) == EC2


def test_infeasible_objective_shows_the_nearest_plan_and_exits_with_1() -> None:
    done = planned("--rate", 50, *SERVICE, "--slo-ms", 20)
    assert done.returncode == 1
    assert done.stdout.startswith("Nearest plan: 1 core, 1769 MB, B = 1")
    assert done.stderr == "Error: No plan has its P95 within 20 ms; the least that can be had is 40.0 ms.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "5", *SERVICE), "either --slo-ms or --budget"),
        ((*SERVICE, "--slo-ms", "5"), "one of --trace, --map and --rate"),
        (("--rate", "5", "--slo-ms", "5"), "one of --profile, --sizes and --service-ms"),
        (("--rate", "-5", *SERVICE, "--slo-ms", "5"), "positive number"),
        (("--rate", "5", *SERVICE, "--slo-ms", "-5"), "positive time"),
        (("--rate", "5", *SERVICE, "--slo-ms", "5", "--percentile", "0"), "above 0"),
        (("--rate", "5", *SERVICE, "--slo-ms", "5", "--timeouts-ms", "9:1:1"), "no timeouts"),
        (("--rate", "5", "--service-ms", "-1", "--slo-ms", "5"), "service time"),
        (("--rate", "5", *SERVICE, "--slo-ms", "5", "--memory-mb", "nan"), "memory or cores of"),
        (("--rate", "5", *SERVICE, "--slo-ms", "5", "--platform", "held", "--usd-per-core-hour", "inf"), "price of cores"),
        (("--rate", "5", "--sizes", __file__, "--slo-ms", "5"), "no JSON"),
        (("--rate", "5", *SERVICE, "--slo-ms", "5", "--platform", "lambda", "--price", "ec2:t2.nano"), "no price of Lambda"),
        (("--rate", "5", *SERVICE, "--slo-ms", "5", "--usd-per-core-hour", "1", "--price", "ec2:t2.nano"), "what a core costs"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_with_2(arguments: tuple[str, ...], words: str) -> None:
    done = planned(*arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert words in done.stderr


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys\nfrom gnomon_cli.main import gnomon\n"
        "gnomon.main(['plan', '--rate', '50', '--service-ms', '40,52', '--slo-ms', '200'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


LOAD = ("--rate", "20", "--duration", "1s")
SIMULATE = ("simulate", *LOAD, "--service-time", "10ms", "--requests")
PLAN = ("plan", "--rate", "50", "--service-ms", "40,52", "--slo-ms", "200", "--plot")


@pytest.mark.parametrize("command", [SIMULATE, PLAN], ids=lambda command: command[0])
def test_a_folder_that_is_missing_is_a_wrong_command(gnomon: Run, command: tuple[str, ...]) -> None:
    done = gnomon(*command, "missing/file")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "'missing' is no folder that can be written to" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_picture_of_a_format_that_nothing_draws_is_told_which_are(gnomon: Run, tmp_path: Path) -> None:
    done = gnomon(*PLAN, str(tmp_path / "plan.weird"))
    assert done.returncode == 1
    assert "supported formats" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_sent_where_the_record_could_not_be_written(gnomon: Run, recorder: Recorder) -> None:
    done = gnomon("replay", f"{recorder.url}/function/echo", *LOAD, "--record", "missing/run.jsonl")
    assert (done.returncode, recorder.requests) == (2, [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_so_is_a_folder_that_is_somebody_elses(gnomon: Run, tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    assert gnomon(*SIMULATE, str(folder / "requests.jsonl")).returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason=f"{sys.platform} has no device that is always full")
def test_a_disk_that_is_full_costs_the_file_alone(gnomon: Run) -> None:
    done = gnomon(*SIMULATE, "/dev/full")
    assert done.returncode == 1
    assert "requests" in done.stdout
    assert done.stderr == "Error: No space left on device.\n"


def test_a_replays_report_is_there_though_its_record_could_not_be_written(gnomon: Run, recorder: Recorder) -> None:
    done = gnomon("replay", f"{recorder.url}/function/echo", *LOAD, "--record", "/dev/full")
    assert done.returncode == 1
    assert "20 requests" in done.stdout
    assert done.stderr.endswith("Error: No space left on device.\n")


BUFFER = ("--batch", "2", "--timeout-ms", "100", "--service-ms", "20,30")


def test_prediction_in_json_holds_the_percentiles_and_nothing_else() -> None:
    done = predicted("--rate", 10, *BUFFER, "--percentiles", "50,90,99,99.9", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == ["percentiles_ms"]
    assert list(document["percentiles_ms"]) == ["50", "90", "99", "99.9"]
    # λT = 1, N = 2 − 1/e: F(30 ms + w) = (1 − 1/e + 1 − e^(−10w))/N before the atom at 120 ms.
    alone = math.exp(-1.0)
    assert document["percentiles_ms"]["50"] == pytest.approx(30.0 - 100.0 * math.log(2.0 - alone - 0.5 * (2.0 - alone)), rel=1e-6)
    assert document["percentiles_ms"]["90"] == pytest.approx(120.0)


def test_prediction_takes_a_map_and_a_method(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text(json.dumps({"D0": [[-10.01, 0.01], [0.01, -200.01]], "D1": [[10, 0], [0, 200]]}))
    found = {}
    for method in ("exact", "paper", "paper-literal"):
        done = predicted("--map", file, "--batch", 8, "--timeout-ms", 50, "--service-ms", 12, "--method", method, "--json")
        found[method] = json.loads(done.stdout)["percentiles_ms"]
        assert list(found[method]) == ["50", "90", "95", "99"]
    # 200 requests/s fill eight in 35 ms; the paper takes 7/105 s for all of them, but never more than the timeout.
    assert found["exact"]["50"] < found["paper"]["50"] < found["paper-literal"]["50"] <= found["paper"]["99"] <= 62.0


def test_prediction_for_varying_service_takes_each_ratio_as_often() -> None:
    done = predicted(
        "--rate", 5, "--batch", 1, "--timeout-ms", 0, "--service-ms", 20, "--service-ratios", "0.9,1,1,1.5", "--json"
    )
    assert json.loads(done.stdout)["percentiles_ms"] == pytest.approx({"50": 20.0, "90": 30.0, "95": 30.0, "99": 30.0})


def test_prediction_without_json_is_a_table() -> None:
    done = predicted("--rate", 0.01, "--batch", 1, "--timeout-ms", "inf", "--service-ms", 12)
    assert done.stdout.splitlines()[1:] == [f"P{percent}         12.000 ms" for percent in (50, 90, 95, 99)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (BUFFER, "either --rate or --map"),
        (("--rate", "0", *BUFFER), "positive number"),
        (("--rate", "nan", *BUFFER), "positive number"),
        (("--rate", "inf", *BUFFER), "positive number"),
        (("--rate", "5", "--map", __file__, *BUFFER), "either --rate or --map"),
        (("--map", __file__, *BUFFER), "no JSON"),
        (("--rate", "5", "--batch", "3", "--timeout-ms", "1", "--service-ms", "1,2"), "2 times, --batch is 3"),
        (("--rate", "5", "--batch", "2", "--timeout-ms", "-1", "--service-ms", "1"), "timeout is 0 or more"),
        (("--rate", "5", "--batch", "2", "--timeout-ms", "1", "--service-ms", "nan"), "service time"),
        (("--rate", "5", *BUFFER, "--percentiles", "0"), "above 0"),
        (("--rate", "5", *BUFFER, "--service-ratios", "-1"), "service time"),
        (("--rate", "5", *BUFFER, "--percentiles", "x"), "not a list of numbers"),
        (("--rate", "5", *BUFFER, "--service-ratios", "1e308"), "more than a number can hold"),
        (("--rate", "5", "--batch", "0", "--timeout-ms", "1", "--service-ms", "1"), "--batch"),
    ],
)
def test_invalid_arguments_of_a_prediction_print_one_sentence_and_exit_with_2(arguments: tuple[str, ...], words: str) -> None:
    done = predicted(*arguments)
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_prediction_refuses_a_map_that_is_none(tmp_path: Path) -> None:
    for number, text in enumerate(('{"D0": [[-1]]}', '{"D0": [[-1]], "D1": [[2]]}', "[]", '{"D0": "x", "D1": []}')):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        done = predicted("--map", file, *BUFFER)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


BURSTY = Map.mmpp2((10.0, 200.0), (2.0, 2.0))


@pytest.fixture(scope="module")
def stamps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arrivals") / "stamps.txt"
    times = markov_arrivals(BURSTY, 30_000, np.random.default_rng(1))
    path.write_text("\n".join(f"{time_s:.9f}" for time_s in times) + "\n")
    return path


def test_fit_is_printed_beside_the_sample(stamps: Path, tmp_path: Path) -> None:
    done = fitted(stamps, "--out", tmp_path / "map.json")
    assert done.returncode == 0, done.stderr
    for word in ("D0", "D1", "scv", "correlation_lag1", "dispersion_", "MISFIT", "Poisson"):
        assert word in done.stdout
    written = Map.from_json(json.loads((tmp_path / "map.json").read_text()))
    assert written.order == 2
    assert written.scv == pytest.approx(BURSTY.scv, rel=0.1)


def test_fit_in_json_is_for_programs(stamps: Path) -> None:
    done = fitted(stamps, "--json", "--duration", "1m")
    document = json.loads(done.stdout)
    assert document["duration_s"] == pytest.approx(60.0, rel=0.05)
    assert Map.from_json(document).rate_rps == pytest.approx(document["arrivals"] / document["duration_s"])


def test_fit_reads_counts_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    counts = np.random.default_rng(3).poisson(20.0, 600)
    path.write_text("t_seconds,count\n" + "".join(f"{second},{count}\n" for second, count in enumerate(counts)))
    document = json.loads(fitted(path, "--json").stdout)
    assert (document["family"], document["phases"]) == ("Poisson", 1)


@pytest.mark.parametrize(
    ("text", "words"), [("1.0\n", "no gap"), ("1\n3\n2\n4\n5\n", "descend"), ("1\nx\n", "line 2"), ("5\n5\n", "infinite")]
)
def test_unfittable_arrivals_name_the_reason(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "stamps.txt"
    path.write_text(text)
    done = fitted(path)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
