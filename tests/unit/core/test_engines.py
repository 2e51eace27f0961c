"""Which engine a function's model runs on, from the report of its conversion."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnomon_core.engines import AUTO, PROGRAM, EngineReport, EngineResult, choose_engine

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


def test_report_is_the_same_after_json() -> None:
    one = report(openvino=OPENVINO, onnxruntime=EngineResult("cannot be converted", 0.5))
    assert EngineReport.from_json(one.to_json()) == one
    for broken in (
        {},
        {"format": "other"},
        {"format": "gnomon-engines/1", "program": {}},
        {"format": "gnomon-engines/1", "program": 1, "engines": {}},
    ):
        with pytest.raises(ValueError, match="engines"):
            EngineReport.from_json(broken)
