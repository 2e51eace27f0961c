"""Layer programs beside the modules they were captured from, in alternating runs on one thread.

    python -m benchmarks.engine [--quick]

A repeat is the median ratio of paired runs, each pair in the other order than the one before; both sides keep freed memory, as an
instance does. What that setting gives is measured as well, in pairs of processes with and without it. YOLOv8x is measured where
the extra `yolo` is installed, which no other needs: its licence is the AGPL.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.programs import pace_of, pace_parser
from benchmarks.report import Figure, measured, unless_missing, write
from gnomon_profiler.catalog import CatalogModel, load_model
from gnomon_profiler.extractor import capture
from gnomon_runtime.engine import load_program
from gnomon_runtime.engine.loaded_model import zeros
from gnomon_runtime.engine.torch_support import keep_freed_memory

GOAL_RATIO = 1.03
MODELS = {"efficientnet-lite0": (1, 8), "torchvision:resnet50": (1, 8), "ultralytics:yolov8x": (1,)}
"""The models and their batches: one image of 640 × 640 keeps YOLOv8x busy for seconds."""
PAIR_BUDGET_S = 8.0
"""The time of one repeat: enough pairs for a steady median, few enough to end."""


def main() -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--time-one", nargs=3, metavar=("FOLDER", "SETTING", "BATCH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.time_one:
        folder, setting, batch = arguments.time_one
        _time_one(Path(folder), int(batch), kept=setting == "kept")
        return
    pace = pace_of(arguments)
    keep_freed_memory()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as directory:
        for name in MODELS:
            model = loaded(name)
            if model is None:
                continue
            folder = Path(directory) / name.replace(":", "-")
            figures += _compare(name, model, folder, pace.repeats)
            figures += _allocator(name, folder, pace.repeats)
    write("engine", figures, repeats=pace.repeats, packages=("torch", "torchvision", "safetensors"), folder=pace.results)


def loaded(name: str) -> CatalogModel | None:
    """A model of the catalog; None where its package is not installed, which is said."""
    return unless_missing(name, lambda: load_model(name))


def _compare(name: str, model: CatalogModel, folder: Path, repeats: int) -> list[Figure]:
    folder.mkdir()
    for file, data in capture(model.module, model.example, model.description).items():
        (folder / file).write_bytes(data)
    figures = [measured(f"{name}: program read, weights mapped and bound", [_load_ms(folder) for _ in range(repeats)], "ms")]
    program = load_program(folder / "program.json", folder / "weights.safetensors")
    for batch in MODELS[name]:
        inputs = torch.randn(batch, *program.signature.inputs[0].shape)
        run_module, run_program = partial(model.module, inputs), partial(program.executor.run, [inputs])
        with torch.inference_mode():
            equal = same(run_module(), run_program())
            ratios, module_ms, program_ms = zip(*(_pairs(run_module, run_program) for _ in range(repeats)), strict=True)
        key = f"{name}: batch {batch}"
        detail = "bit-equal" if equal else "NOT bit-equal"
        figures += [
            measured(f"{key}, program ÷ module", ratios, "", at_most=GOAL_RATIO, detail=detail),
            measured(f"{key}, module", module_ms, "ms"),
            measured(f"{key}, program", program_ms, "ms"),
        ]
    return figures


def same(answer: Tensor | Mapping[str, Tensor], outputs: Sequence[Tensor]) -> bool:
    """Return whether a module's answer, one tensor or several by name, equals the program's to the bit."""
    tensors = list(answer.values()) if isinstance(answer, Mapping) else [answer]
    return len(tensors) == len(outputs) and all(map(torch.equal, tensors, outputs))


def _pairs(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float, float]:
    """The median ratio second ÷ first of paired runs, and the median of each in ms."""
    first()
    second()
    times: list[tuple[float, float]] = []
    end_s = time.perf_counter() + PAIR_BUDGET_S
    while time.perf_counter() < end_s or len(times) < 4:
        if len(times) % 2:
            later, earlier = _seconds(second), _seconds(first)
            times.append((earlier, later))
        else:
            times.append((_seconds(first), _seconds(second)))
    ratio = statistics.median(b / a for a, b in times)
    return ratio, 1000 * statistics.median(a for a, _ in times), 1000 * statistics.median(b for _, b in times)


def _seconds(run: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


def _load_ms(folder: Path) -> float:
    return 1000 * _seconds(lambda: load_program(folder / "program.json", folder / "weights.safetensors"))


def _allocator(name: str, folder: Path, repeats: int) -> list[Figure]:
    batch = MODELS[name][-1]
    pairs = [[_elsewhere(folder, setting, batch) for setting in ("kept", "returned")] for _ in range(repeats)]
    ratios = [kept / returned for kept, returned in pairs]
    return [measured(f"{name}: batch {batch}, freed memory kept ÷ returned", ratios, "", detail="CPU time of the program")]


def _elsewhere(folder: Path, setting: str, batch: int) -> float:
    command = [sys.executable, "-m", "benchmarks.engine", "--time-one", str(folder), setting, str(batch)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _time_one(folder: Path, batch: int, *, kept: bool) -> None:
    if kept:
        keep_freed_memory()
    program = load_program(folder / "program.json", folder / "weights.safetensors")
    inputs = zeros(program.signature, batch)
    times = []
    for _ in range(8):
        began_s = time.process_time()
        program.executor.run(inputs)
        times.append(time.process_time() - began_s)
    print(statistics.median(times[2:]))


if __name__ == "__main__":
    main()
