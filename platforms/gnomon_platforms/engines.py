"""The engine that runs a function's model on this machine: what its settings ask for, its entry has and is installed."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from gnomon_core.engines import PROGRAM, REPORT, ChosenEngine, EngineReport, choose_engine, read_report
from gnomon_core.interfaces import ModelEntry
from gnomon_core.packaging import how_to_install

_LOG = logging.getLogger(__name__)
_PACKAGES = {"onnxruntime": ("onnxruntime", "onnx"), "openvino": ("openvino",)}
"""What an instance imports; a conversion needs more."""


def engine_of(entry: ModelEntry, requested: str) -> ChosenEngine:
    """The engine for this entry; the layer program, with the reason, where the requested one cannot be had here."""
    chosen = choose_engine(requested, entry.files, _report(entry.files.get(REPORT)))
    if chosen.name != PROGRAM and not is_installed(chosen.name):
        return ChosenEngine(shortfall=f"{chosen.name} is not installed. {how_to_install(chosen.name)}")
    return chosen


def _report(path: Path | None) -> EngineReport | None:
    try:
        return None if path is None else _read(path)
    except (OSError, ValueError) as error:
        _LOG.warning("the report on engines %s cannot be read: %s", path, error)
        return None


@cache
def _read(path: Path) -> EngineReport:
    """The report in a file, whose name is its content's hash: it is read once."""
    return read_report(path)


@cache
def is_installed(engine: str) -> bool:
    """Whether the packages that run this engine are installed."""
    return all(find_spec(package) is not None for package in _PACKAGES[engine])


def engine_modules() -> tuple[str, ...]:
    """The modules of installed engines that a process which instances are forked from may import.

    ONNX Runtime and OpenVINO start a thread when they are imported, which a fork does not have and waits for: instances import
    them, in 50 to 100 ms. The library that reads ONNX files starts none, and takes 190 ms.
    """
    return ("onnx.utils",) if is_installed("onnxruntime") else ()
