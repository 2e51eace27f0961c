"""The memory that four instances of a model hold together beyond what any instance holds, by engine.

    python -m benchmarks.instance_memory [--quick]

The sum of the four processes' proportional set sizes, in which a page that k processes map counts 1/k for each, less the same sum
of four instances of a network of a few numbers, ÷ the size of the model's weight file. 1 is a file that all of them share, 4 a
copy for each; the tensors of a batch of one are in it. The instances have answered a batch of one each. Precisions that are
offered here are measured as well.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

from benchmarks import gnomon
from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, measured, write
from gnomon_core.engines import AUTO, PROGRAM, REPORT, read_report, split_name
from gnomon_core.interfaces import ModelEntry
from gnomon_profiler.add import add_model, ensure_model
from gnomon_profiler.engines import add_engines
from gnomon_profiler.repository import DirectoryRepository

MODELS = ("efficientnet-lite0", "torchvision:resnet50")
SMALL = "four-numbers"
INSTANCES = 4
CALM_S = 0.5


def main(pace: Pace) -> None:
    repository = DirectoryRepository(gnomon.MODELS)
    small = add_engines(repository, _small(repository), progress=step, precisions=[AUTO])
    figures: list[Figure] = []
    for name in MODELS[: 1 if pace.quick else None]:
        entry = add_engines(repository, ensure_model(repository, name, progress=step), progress=step, precisions=[AUTO])
        report = read_report(entry.files[REPORT])
        engines = (PROGRAM, *(engine for engine, result in report.engines.items() if not result.reason))
        with gnomon.serving(options=("--pool", "0")) as ours:
            figures += [_figure(ours, entry, small, engine) for engine in engines]
    write("instance_memory", figures, repeats=1, packages=("gnomon", "torch", "onnxruntime", "openvino"), folder=pace.results)


def _small(repository: DirectoryRepository) -> ModelEntry:
    torch.manual_seed(0)
    return add_model(nn.Sequential(nn.Linear(4, 4)).eval(), torch.zeros(1, 4), SMALL, repository)


def _figure(ours: gnomon.Gnomon, entry: ModelEntry, small: ModelEntry, engine: str) -> Figure:
    file_bytes = entry.weights.stat().st_size
    # A small network is offered in fp32 alone, since it gains nothing in other precisions; the process is the same.
    base_bytes = _proportional_bytes(ours, small.name, split_name(engine)[0])
    held_bytes = _proportional_bytes(ours, entry.name, engine)
    share = (held_bytes - base_bytes) / file_bytes
    step(f"{entry.name} on {engine}: {held_bytes / 1e6:.0f} − {base_bytes / 1e6:.0f} MB, {share:.2f} of the file")
    detail = f"{INSTANCES} instances, {file_bytes / 1e6:.1f} MB of weights in fp32"
    return measured(f"{entry.name} on {engine}: memory ÷ weight file", [share], "×", detail=detail)


def _proportional_bytes(ours: gnomon.Gnomon, model: str, engine: str) -> int:
    """Proportional bytes of all instances of a function with this model, which is deployed for the measurement alone."""
    library, precision = split_name(engine)
    annotations = {"gnomon/model": model, "gnomon/engine": library, "gnomon/precision": precision}
    labels = {"com.openfaas.scale.min": str(INSTANCES), "com.openfaas.scale.max": str(INSTANCES)}
    document = {"service": "m", "image": "gnomon/body", "annotations": annotations, "labels": labels}
    ours.call("POST", "/system/functions", document)
    ours.wait_replicas("m", INSTANCES)
    found: str = ours.call("GET", "/gnomon/functions/m")["engine"]
    if found != engine:
        raise RuntimeError(f"{model} runs on {found}, not on {engine}")
    time.sleep(CALM_S)
    processes = _instances()
    if len(processes) != INSTANCES:
        raise RuntimeError(f"{len(processes)} processes of {INSTANCES} instances")
    total = sum(map(_pss_bytes, processes))
    ours.call("DELETE", "/system/functions", {"functionName": "m"})
    while _instances():
        time.sleep(0.05)
    return total


def _instances() -> list[Path]:
    """The processes of the function's instances: the runtime names them after it."""
    return [path for path in Path("/proc").iterdir() if path.name.isdigit() and _name(path).startswith("gnomon m.")]


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _pss_bytes(process: Path) -> int:
    lines = (process / "smaps_rollup").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("Pss:")))


if __name__ == "__main__":
    start(main, __doc__)
