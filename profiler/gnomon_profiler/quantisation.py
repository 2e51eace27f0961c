"""Quantises a graph to int8 with ONNX Runtime's static quantisation, from sample inputs.

    model.onnx ─▶ quant_pre_process ─▶ quantize_static, ranges from samples ─▶ model-int8.onnx
    model-int8.onnx ─▶ openvino.convert_model ─▶ openvino-int8.xml

Weights are int8 with a scale for each channel, activations uint8 with a scale for each tensor. Each value at a border between
blocks is quantised as every other, so that pieces of the graph compute in integers too
(`gnomon_runtime.engine.onnx_graph`). OpenVINO reads the same graph: one calibration for both. Weights use 7 bits where this CPU
has no VNNI: sums of 8-bit products overflow 16 bits there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnomon_core.engines import GRAPH_FILES, INT8, cpu_arithmetic, engine_name, not_convertible
from gnomon_profiler.sample_sets import SampleSet

CALIBRATION_SAMPLES = 32
_BATCH = 4
_ONNX_INT8, _OPENVINO_INT8 = engine_name("onnxruntime", INT8), engine_name("openvino", INT8)


def to_onnx_int8(graph: Mapping[str, Path], samples: SampleSet, inputs: tuple[str, ...]) -> dict[str, bytes]:
    """The int8 graph of an ONNX graph with its file of weights; `inputs` are the names of its inputs, in the samples' order.

    Raises:
        GnomonError: 422 `not_convertible` with the reason of ONNX Runtime.

    """
    from onnxruntime.quantization import (  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra, without types
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process  # type: ignore[import-untyped]  # noqa: PLC0415

    with _as_written(graph) as model, tempfile.TemporaryDirectory(prefix="gnomon-int8-") as directory:
        prepared, quantised = Path(directory) / "prepared.onnx", Path(directory) / "quantised.onnx"
        try:
            quant_pre_process(str(model), str(prepared))
            quantize_static(
                str(prepared),
                str(quantised),
                _Reader(samples, inputs),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                reduce_range=INT8 not in cpu_arithmetic(),
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
            )
            return {GRAPH_FILES[_ONNX_INT8][0]: quantised.read_bytes()}
        except Exception as error:  # noqa: BLE001 - a converter may raise anything; it is the reason that the precision is not offered
            raise not_convertible("onnxruntime.quantization", "quantise", error) from None


def to_openvino_int8(quantised: Path) -> dict[str, bytes]:
    """OpenVINO's IR of a quantised ONNX graph.

    Raises:
        GnomonError: 422 `not_convertible`.

    """
    import openvino  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra, without types

    names = GRAPH_FILES[_OPENVINO_INT8]
    with tempfile.TemporaryDirectory(prefix="gnomon-openvino-") as folder:
        try:
            # The frontend goes by a file's suffix, and a repository names files by their content.
            source = Path(folder) / "quantised.onnx"
            source.symlink_to(quantised.resolve())
            openvino.save_model(openvino.convert_model(str(source)), Path(folder) / names[0], compress_to_fp16=False)
        except Exception as error:  # noqa: BLE001 - a converter may raise anything; it is the reason that the precision is not offered
            raise not_convertible("openvino.convert_model", "quantise", error) from None
        return {name: (Path(folder) / name).read_bytes() for name in names}


@contextmanager
def _as_written(graph: Mapping[str, Path]) -> Iterator[Path]:
    """The graph under the names that its converter gave its files, by which the graph names its weights."""
    with tempfile.TemporaryDirectory(prefix="gnomon-graph-") as folder:
        for name, path in graph.items():
            # Copies: onnx does not read weights through a link.
            shutil.copyfile(path, Path(folder) / name)
        yield Path(folder) / GRAPH_FILES["onnxruntime"][0]


class _Reader:
    """The samples in batches, as the calibrator asks for them."""

    def __init__(self, samples: SampleSet, inputs: tuple[str, ...]) -> None:
        self._count = min(len(samples), CALIBRATION_SAMPLES)
        self._arrays = dict(zip(inputs, samples.inputs, strict=True))
        self._at = 0

    def get_next(self) -> dict[str, Any] | None:
        begin, end = self._at, min(self._at + _BATCH, self._count)
        self._at = end
        return {name: array[begin:end] for name, array in self._arrays.items()} if end > begin else None

    def set_range(self, start_index: int, end_index: int) -> None:
        self._at, self._count = start_index, end_index

    def __len__(self) -> int:
        return max(0, (self._count + _BATCH - 1) // _BATCH)
