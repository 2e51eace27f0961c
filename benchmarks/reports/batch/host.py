"""Figure 9's step: `hosted` in a process of its own, so that nothing else of the report counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import gnomon_planner
from benchmarks.programs import ROOT
from benchmarks.report import machine
from benchmarks.reports.batch import demand, hosted
from benchmarks.reports.batch.setting import Setting
from benchmarks.reports.report import Results, Step

HOURS = 3
QUICK_S = 300


def steps(setting: Setting) -> Iterable[Step]:
    about = {
        "hours": 1 if setting.quick else HOURS,
        "hour_s": QUICK_S if setting.quick else demand.HOUR,
        "space": {"memories_mb": setting.memories_mb, "batches": setting.plan_batches, "timeouts_s": setting.timeouts_s},
        "machine": machine(),
    }
    yield Step("fig9", _hosted, about, sources=(gnomon_planner, hosted))


def _hosted(parameters: Mapping[str, Any], _: Results) -> Any:
    command = [
        sys.executable,
        "-m",
        hosted.__name__,
        str(parameters["hours"]),
        str(parameters["hour_s"]),
        json.dumps(parameters["space"]),
    ]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
