"""Checks of one machine: memory, disk, control groups, huge pages, the memory allocator, torch."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gnomon_cli.doctor.findings import Check, Level
from gnomon_core.packaging import how_to_install, jemalloc
from gnomon_platforms.local.cgroups import MemoryGroups
from gnomon_server.process import check_disk_space, memory_is_short

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
COLLAPSE_SINCE = (6, 1)
"""The first Linux with the call by which a process gathers its own memory in huge pages."""


def machine_checks(state: Path) -> Iterator[tuple[str, Check]]:
    """The checks of a machine whose state folder is or will be `state`."""
    yield "memory and disk", lambda: memory_and_disk(state)
    yield "control groups", control_groups
    yield "huge pages", lambda: huge_pages(HUGE_PAGES, os.uname().release)
    yield "memory allocator", lambda: allocator(jemalloc())
    yield "models", models


def memory_and_disk(state: Path) -> tuple[Level, str, str]:
    """Check whether there is enough free memory and disk space.

    Raises:
        GnomonError: 500 `no_disk`.

    """
    check_disk_space(state)
    if short := memory_is_short():
        return Level.WARN, short, "Close something, or serve functions without models."
    return Level.OK, "There is enough of both to begin with.", ""


def control_groups() -> tuple[Level, str, str]:
    """The mechanism that limits an instance's memory."""
    groups = MemoryGroups()
    groups.close()
    if groups.available:
        return Level.OK, f"Memory limits hold by {groups.description}.", ""
    return (
        Level.WARN,
        f"Memory limits hold by {groups.description}.",
        "Run where a memory control group can be written, as root or delegated by systemd: its limits count shared pages once.",
    )


def huge_pages(setting: Path, release: str) -> tuple[Level, str, str]:
    """Check whether the zygote's memory can be gathered in huge pages, so that forks copy few page tables."""
    version = re.match(r"(\d+)\.(\d+)", release)
    if version is None or (int(version[1]), int(version[2])) < COLLAPSE_SINCE:
        return Level.WARN, f"Linux {release} cannot gather memory in huge pages: starts are slower.", "Use Linux 6.1 or newer."
    try:
        chosen = re.search(r"\[(\w+)\]", setting.read_text(encoding="ascii"))
    except OSError:
        return Level.WARN, "This kernel was built without huge pages: starts are slower.", ""
    return Level.OK, f"Transparent huge pages are there ({chosen[1] if chosen else 'unknown'}), and can be asked for.", ""


def allocator(library: Path | None) -> tuple[Level, str, str]:
    """The memory allocator of models' tensors."""
    if library is None:
        return (
            Level.WARN,
            "jemalloc is not installed: models take about a sixth longer, and more memory.",
            "Install it (Debian and Ubuntu: apt-get install libjemalloc2) and start Gnomon again.",
        )
    return Level.OK, f"Models have their tensors from jemalloc ({library}).", ""


def models() -> tuple[Level, str, str]:
    """Check whether layer programs can be run here."""
    if importlib.util.find_spec("torch") is None:
        return Level.WARN, "torch is not installed: handlers run, models do not.", how_to_install("models")
    return Level.OK, "torch is installed.", ""
