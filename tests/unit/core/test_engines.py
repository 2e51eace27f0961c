"""Which engine a function's model runs on, from the report of its conversion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.engines import AUTO, PROGRAM, EngineReport, EngineResult, arithmetic_of, choose_engine

FILES = {name: Path("/objects") / name for name in ("openvino.xml", "openvino.bin", "model.onnx", "model.onnx.data")}
OPENVINO = EngineResult(
    latency_s={1: 0.010, 8: 0.090}, error=1e-6, files=("openvino.xml", "openvino.bin"), versions={"openvino": "1"}
)
ONNX = EngineResult(latency_s={1: 0.012, 8: 0.100}, files=("model.onnx", "model.onnx.data"))
PROGRAM_RESULT = EngineResult(latency_s={1: 0.020, 8: 0.200})


def report(**engines: EngineResult) -> EngineReport:
    return EngineReport(PROGRAM_RESULT, engines, "a machine")


def test_auto_is_the_quickest_engine_that_is_offered() -> None:
    assert report(openvino=OPENVINO, onnxruntime=ONNX).auto == "openvino"
    assert report(openvino=EngineResult("its answers differ"), onnxruntime=ONNX).auto == "onnxruntime"
    assert report(openvino=EngineResult("no"), onnxruntime=EngineResult("no")).auto == PROGRAM
    assert report().auto == PROGRAM


def test_auto_stays_with_the_program_where_an_engine_gains_nothing() -> None:
    slow = EngineResult(latency_s={1: 0.0199, 8: 0.199}, files=("model.onnx", "model.onnx.data"))
    assert report(onnxruntime=slow).auto == PROGRAM
    assert choose_engine("onnxruntime", FILES, report(onnxruntime=slow)).name == "onnxruntime", "who names it gets it"


def test_chosen_engine_has_its_files() -> None:
    chosen = choose_engine(AUTO, FILES, report(openvino=OPENVINO))
    assert (chosen.name, set(chosen.files), str(chosen)) == ("openvino", {"openvino.xml", "openvino.bin"}, "openvino")


@pytest.mark.parametrize(
    ("requested", "files", "of", "reason"),
    [
        (AUTO, FILES, None, "has not been converted"),
        ("openvino", FILES, report(onnxruntime=ONNX), "openvino: the model was not converted for it"),
        ("openvino", FILES, report(openvino=EngineResult("no kernel")), "openvino: no kernel"),
        ("openvino", {}, report(openvino=OPENVINO), "openvino: the model's entry has no openvino.xml"),
    ],
)
def test_program_serves_with_the_reason_where_the_engine_cannot(
    requested: str, files: dict[str, Path], of: EngineReport | None, reason: str
) -> None:
    chosen = choose_engine(requested, files, of)
    assert (chosen.name, chosen.files) == (PROGRAM, {})
    assert reason in chosen.shortfall
    assert str(chosen).startswith("program (")


def test_program_can_be_asked_for() -> None:
    assert choose_engine(PROGRAM, FILES, report(openvino=OPENVINO)) == choose_engine(PROGRAM, {}, None)


INT8 = EngineResult(latency_s={1: 0.006, 8: 0.050}, files=("model-int8.onnx",), agreement=0.98, accuracy=0.95)
ACCURATE = replace(ONNX, accuracy=0.97)
ALL_FILES = FILES | {"model-int8.onnx": Path("/objects/model-int8.onnx")}


def precise(**changes: EngineResult) -> EngineReport:
    engines = {"onnxruntime": ACCURATE, "onnxruntime-int8": INT8} | {
        name.replace("_", "-"): change for name, change in changes.items()
    }
    return EngineReport(replace(PROGRAM_RESULT, accuracy=0.97), engines, "a machine", samples="64 crops", validation="ab")


def test_lower_precision_never_serves_a_function_that_does_not_ask_for_it() -> None:
    assert precise().auto == "onnxruntime"
    assert choose_engine(AUTO, ALL_FILES, precise()).name == "onnxruntime"


@pytest.mark.parametrize("engine", [AUTO, "onnxruntime"])
def test_named_precision_has_its_engine_and_accuracy(engine: str) -> None:
    chosen = choose_engine(engine, ALL_FILES, precise(), "int8")
    assert (chosen.name, chosen.engine, chosen.precision, chosen.accuracy) == ("onnxruntime-int8", "onnxruntime", "int8", 0.95)
    assert set(chosen.files) == {"model-int8.onnx"}
    assert not chosen.shortfall


@pytest.mark.parametrize(("floor", "name"), [(0.9, "onnxruntime-int8"), (0.95, "onnxruntime-int8"), (0.96, "onnxruntime")])
def test_auto_precision_is_the_quickest_whose_accuracy_reaches_the_floor(floor: float, name: str) -> None:
    assert choose_engine(AUTO, ALL_FILES, precise(), AUTO, floor).name == name


@pytest.mark.parametrize(
    ("asked", "of", "served", "reason"),
    [
        ((AUTO, AUTO, 0.99), precise(), "onnxruntime", "no precision reaches the accuracy floor 0.99: the best accuracy is 0.97"),
        ((AUTO, AUTO, 0.5), report(onnxruntime=ONNX), "onnxruntime", "no accuracy was measured"),
        ((AUTO, "int8", 0.0), None, PROGRAM, "has not been converted"),
        ((AUTO, "int8", 0.0), report(onnxruntime=ONNX), "onnxruntime", "int8: the model has not been converted to it yet"),
        (("onnxruntime", "bf16", 0.0), precise(), "onnxruntime", "onnxruntime has no kernels for bf16"),
        ((PROGRAM, "int8", 0.0), precise(), PROGRAM, "the layer program runs in the model's own types"),
        ((AUTO, "int8", 0.0), precise(onnxruntime_int8=EngineResult("rare")), "onnxruntime", "onnxruntime-int8: rare"),
    ],
)
def test_fp32_serves_with_the_reason_where_a_precision_cannot(
    asked: tuple[str, str, float], of: EngineReport | None, served: str, reason: str
) -> None:
    engine, precision, floor = asked
    chosen = choose_engine(engine, ALL_FILES, of, precision, floor)
    assert chosen.name == served
    assert reason in chosen.shortfall


@pytest.mark.parametrize(("precision", "reason"), [("int8", "VNNI"), ("bf16", "bf16 arithmetic")])
def test_precision_serves_only_where_the_cpu_has_the_arithmetic_that_it_was_measured_with(precision: str, reason: str) -> None:
    of = precise(
        onnxruntime_int8=replace(INT8, arithmetic="int8"),
        openvino_bf16=replace(OPENVINO, agreement=1.0, accuracy=0.97, arithmetic="bf16"),
    )
    there = choose_engine(AUTO, ALL_FILES, of.on_cpu({precision}), precision)
    assert (there.precision, there.shortfall) == (precision, "")
    elsewhere = choose_engine(AUTO, ALL_FILES, of.on_cpu(set()), precision)
    assert (elsewhere.name, elsewhere.accuracy) == ("onnxruntime", 0.97)
    assert reason in elsewhere.shortfall
    assert choose_engine(AUTO, ALL_FILES, of.on_cpu(set()), AUTO, 0.9).name == "onnxruntime"
    assert EngineReport.from_json(of.to_json()) == of


@pytest.mark.parametrize(
    ("cpuinfo", "arithmetic"),
    [
        ("flags\t\t: fpu avx2 avx512_bf16 avx512_vnni\n", {"bf16", "int8"}),
        ("flags\t\t: fpu avx2 avx_vnni\n", {"int8"}),
        ("flags\t\t: fpu avx2 avx512bw\nbugs\t\t: avx512_vnni\n", set()),
        ("Features\t: fp asimd bf16\n", {"bf16", "int8"}),
        ("Features\t: fp asimd\n", {"int8"}),
        ("", set()),
    ],
)
def test_arithmetic_is_read_from_the_flags_of_the_cpu(cpuinfo: str, arithmetic: set[str]) -> None:
    assert arithmetic_of(cpuinfo) == arithmetic


def test_graph_whose_pieces_answer_otherwise_has_none() -> None:
    exact, rough = replace(INT8, pieces_error=1e-6), replace(INT8, pieces_error=0.3)
    assert choose_engine(AUTO, ALL_FILES, precise(onnxruntime_int8=exact), "int8").has_pieces
    assert not choose_engine(AUTO, ALL_FILES, precise(onnxruntime_int8=rough), "int8").has_pieces


def test_report_on_precisions_is_the_same_after_json() -> None:
    slow = replace(INT8, reason="it takes 1.2 of the time", pieces_error=0.01)
    engine_report = precise(onnxruntime_int8=slow, openvino_bf16=EngineResult("this CPU has no bf16 arithmetic"))
    assert EngineReport.from_json(engine_report.to_json()) == engine_report


def test_report_is_the_same_after_json() -> None:
    engine_report = report(openvino=OPENVINO, onnxruntime=EngineResult("cannot be converted", 0.5))
    assert EngineReport.from_json(engine_report.to_json()) == engine_report
    for broken in (
        {},
        {"format": "other"},
        {"format": "gnomon-engines/2", "program": {}},
        {"format": "gnomon-engines/2", "program": 1, "engines": {}},
    ):
        with pytest.raises(ValueError, match="engines"):
            EngineReport.from_json(broken)


def test_report_of_an_earlier_version_is_read_and_marked() -> None:
    document = report(openvino=OPENVINO).to_json()
    assert not EngineReport.from_json(document).outdated
    earlier = EngineReport.from_json(document | {"format": "gnomon-engines/1"})
    assert earlier == replace(report(openvino=OPENVINO), outdated=True)
