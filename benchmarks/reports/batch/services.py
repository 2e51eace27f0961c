"""Execution times of batches: measured on one and two cores, and derived for any memory size of Lambda.

A function of m MB has m/1769 vCPUs. Below one, a batch takes its time on one core divided by that share, as a quota of CPU time
makes it; between one and two, what Amdahl's law says that agrees with both measured times. Between measured batches time is
linear. Worked: 0.10 s on one core and 0.06 s on two are 0.02 s + 0.08 s/c; 1,327 MB (0.75) take 0.133 s, 2,654 MB (1.5)
0.073 s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.programs import ROOT
from benchmarks.report import machine
from benchmarks.reports.batch import service_process
from benchmarks.reports.batch.setting import APPLICATIONS, MB_PER_CPU, Application, Setting
from benchmarks.reports.report import Results, Step
from gnomon_core.packaging import FOR_LIBRARIES
from gnomon_planner.plans import Size
from gnomon_planner.service_time import ratios_of_runs

Vector = npt.NDArray[np.float64]
CORES = (1, 2)
PROFILES = ROOT / "profiles"


class Service:
    """The service times of one application, from a step's result."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self.cells: list[dict[str, Any]] = list(result["cells"])
        self.source = str(result["source"])
        rows = {cores: sorted((cell for cell in self.cells if cell["cores"] == cores), key=_batch) for cores in CORES}
        self._batches = np.array([cell["batch"] for cell in rows[CORES[0]]], dtype=float)
        self._one, self._two = (np.array([statistics.median(cell["seconds"]) for cell in rows[cores]]) for cores in CORES)

    def row(self, memory_mb: float, batches: int) -> tuple[float, ...]:
        """S_1 … S_B in seconds for a function of that memory."""
        asked = np.arange(1, batches + 1, dtype=float)
        if batches > self._batches[-1]:
            raise ValueError(f"batches are known up to {self._batches[-1]:g}")
        first, second = np.interp(asked, self._batches, self._one), np.interp(asked, self._batches, self._two)
        share = memory_mb / MB_PER_CPU
        parallel = np.minimum(2.0 * np.maximum(first - second, 0.0), first)
        found = first / share if share <= 1.0 else first - parallel + parallel / share
        return tuple(found.tolist())

    def size(self, memory_mb: float, batches: int) -> Size:
        """The size from which the optimizer chooses: medians, and how far the measured times are from them."""
        row, ratios = self.row(memory_mb, batches), ratios_of_runs(cell["seconds"] for cell in self.cells)
        return Size(f"{memory_mb:g} MB", memory_mb, memory_mb / MB_PER_CPU, row, ratios)

    @property
    def ratios(self) -> Vector:
        """Every measured time relative to the median of its cell: how far from deterministic service is."""
        parts = [np.array(cell["seconds"]) / statistics.median(cell["seconds"]) for cell in self.cells]
        return np.concatenate(parts)


def steps(setting: Setting) -> Iterable[Step]:
    """One step for each application."""
    for application in APPLICATIONS.values():
        name = step_name(application.name)
        if setting.quick:
            yield Step(
                name,
                _published,
                {"profile": application.profile, "batches": setting.batches},
                sources=(PROFILES / f"{application.profile}.json",),
            )
        else:
            about = {"model": application.model, "batches": setting.batches, "repeats": setting.repeats, "machine": machine()}
            yield Step(name, _measured, about, sources=(service_process,))


def step_name(application: str) -> str:
    return f"service-{application.lower()}"


def service_of(results: Results, application: str) -> Service:
    """The measurements of an application."""
    return Service(results[step_name(application)])


def described(application: Application, setting: Setting) -> str:
    """The model that stands for an application, in words."""
    return f"{application.profile} (published profile)" if setting.quick else application.model.removeprefix("torchvision:")


def _batch(cell: Mapping[str, Any]) -> int:
    return int(cell["batch"])


def _measured(parameters: Mapping[str, Any], _: Results) -> dict[str, Any]:
    """Capture the model in one process, run it in another for each number of cores."""
    cells = []
    with tempfile.TemporaryDirectory(prefix="gnomon-report-") as folder:
        _python("-c", _CAPTURE, parameters["model"], folder)
        batches = ",".join(str(batch) for batch in parameters["batches"])
        for cores in CORES:
            lines = _python("-m", service_process.__name__, folder, str(cores), batches, str(parameters["repeats"]))
            cells += [json.loads(line) for line in lines.splitlines()]
    return {"source": f"measured here, {parameters['repeats']} runs a cell", "cells": cells}


_CAPTURE = """
import sys
from pathlib import Path
from gnomon_profiler.catalog import load_model
from gnomon_profiler.extractor import capture
model = load_model(sys.argv[1])
for name, data in capture(model.module, model.example, model.description).items():
    (Path(sys.argv[2]) / name).write_bytes(data)
"""


def _python(*arguments: str) -> str:
    environment = {**os.environ, **FOR_LIBRARIES}  # as an instance has it
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _published(parameters: Mapping[str, Any], _: Results) -> dict[str, Any]:
    """The medians of a published profile, in the place of measurements, spread as its quartiles are."""
    profile = json.loads((PROFILES / f"{parameters['profile']}.json").read_text(encoding="utf-8"))
    cells = []
    for cores in CORES:
        for batch in parameters["batches"]:
            median_s = profile["whole_s"][str(cores)][str(batch)]
            half = profile["spread"][f"{cores}/{batch}"] / 2.0
            cells.append({"cores": cores, "batch": batch, "seconds": [median_s * (1.0 + off) for off in (-half, 0.0, half)]})
    return {"source": f"the published profile of {parameters['profile']}", "cells": cells}
