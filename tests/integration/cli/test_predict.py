"""`gnomon predict`, as its user meets it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = ("--batch", "2", "--timeout-ms", "100", "--service-ms", "20,30")


def gnomon(*arguments: str | float | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from gnomon_cli.main import main; main()", "predict", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_json_holds_the_percentiles_and_nothing_else() -> None:
    done = gnomon("--rate", 10, *PLAN, "--percentiles", "50,90,99,99.9", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == ["percentiles_ms"]
    assert list(document["percentiles_ms"]) == ["50", "90", "99", "99.9"]
    # λT = 1, N = 2 − 1/e: F(30 ms + w) = (1 − 1/e + 1 − e^(−10w))/N before the atom at 120 ms.
    alone = math.exp(-1.0)
    assert document["percentiles_ms"]["50"] == pytest.approx(30.0 - 100.0 * math.log(2.0 - alone - 0.5 * (2.0 - alone)), rel=1e-6)
    assert document["percentiles_ms"]["90"] == pytest.approx(120.0)


def test_a_map_and_its_method_are_chosen(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text(json.dumps({"D0": [[-10.01, 0.01], [0.01, -200.01]], "D1": [[10, 0], [0, 200]]}))
    found = {}
    for method in ("exact", "paper", "paper-literal"):
        done = gnomon("--map", file, "--batch", 8, "--timeout-ms", 50, "--service-ms", 12, "--method", method, "--json")
        found[method] = json.loads(done.stdout)["percentiles_ms"]
        assert list(found[method]) == ["50", "90", "95", "99"]
    # 200 requests/s fill eight in 35 ms; the paper takes 7/105 s for all of them, but never more than the timeout.
    assert found["exact"]["50"] < found["paper"]["50"] < found["paper-literal"]["50"] <= found["paper"]["99"] <= 62.0


def test_service_that_varies_takes_each_of_its_ratios_as_often() -> None:
    done = gnomon("--rate", 5, "--batch", 1, "--timeout-ms", 0, "--service-ms", 20, "--service-ratios", "0.9,1,1,1.5", "--json")
    assert json.loads(done.stdout)["percentiles_ms"] == pytest.approx({"50": 20.0, "90": 30.0, "95": 30.0, "99": 30.0})


def test_without_json_a_person_reads_it() -> None:
    done = gnomon("--rate", 0.01, "--batch", 1, "--timeout-ms", "inf", "--service-ms", 12)
    assert done.stdout.splitlines()[1:] == [f"P{percent}         12.000 ms" for percent in (50, 90, 95, 99)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (PLAN, "either --rate or --map"),
        (("--rate", "0", *PLAN), "positive number"),
        (("--rate", "nan", *PLAN), "positive number"),
        (("--rate", "inf", *PLAN), "positive number"),
        (("--rate", "5", "--map", __file__, *PLAN), "either --rate or --map"),
        (("--map", __file__, *PLAN), "no JSON"),
        (("--rate", "5", "--batch", "3", "--timeout-ms", "1", "--service-ms", "1,2"), "2 times, --batch is 3"),
        (("--rate", "5", "--batch", "2", "--timeout-ms", "-1", "--service-ms", "1"), "timeout is 0 or more"),
        (("--rate", "5", "--batch", "2", "--timeout-ms", "1", "--service-ms", "nan"), "service time"),
        (("--rate", "5", *PLAN, "--percentiles", "0"), "above 0"),
        (("--rate", "5", *PLAN, "--service-ratios", "-1"), "service time"),
        (("--rate", "5", *PLAN, "--percentiles", "x"), "not a list of numbers"),
        (("--rate", "5", *PLAN, "--service-ratios", "1e308"), "more than a number can hold"),
        (("--rate", "5", "--batch", "0", "--timeout-ms", "1", "--service-ms", "1"), "--batch"),
    ],
)
def test_invalid_arguments_print_one_sentence_and_exit_with_2(arguments: tuple[str, ...], words: str) -> None:
    done = gnomon(*arguments)
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_map_that_is_none_is_refused(tmp_path: Path) -> None:
    for number, text in enumerate(('{"D0": [[-1]]}', '{"D0": [[-1]], "D1": [[2]]}', "[]", '{"D0": "x", "D1": []}')):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        done = gnomon("--map", file, *PLAN)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
