"""What a profile was measured on: in words for people, and as a name for its file."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor's name, its family and model numbers, how many CPUs we may use, and how much memory there is."""

    processor: str
    family: str
    cpus: tuple[int, ...]
    memory_gib: int
    kernel: str

    @property
    def cores(self) -> int:
        return len(self.cpus)

    @property
    def id(self) -> str:
        """Its name in files: machines with the same one are taken for equally fast. Example: "amd-epyc-25-17-2-cores"."""
        slug = re.sub(r"[^a-z0-9]+", "-", f"{self.processor} {self.family}".lower()).strip("-")
        return f"{slug}-{self.cores}-cores"

    def __str__(self) -> str:
        return f"{self.processor} ({self.family}), {self.cores} cores, {self.memory_gib} GiB, Linux {self.kernel}"


def this_machine(cpuinfo: str | None = None) -> Machine:
    """The machine that we run on. `cpuinfo` is the text of /proc/cpuinfo."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if cpuinfo is None else cpuinfo
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines()) if value}
    family = " ".join(facts[name] for name in ("cpu family", "model") if name in facts)
    return Machine(
        processor=facts.get("model name", platform.machine()).replace("(R)", "").replace("(TM)", ""),
        family=family or platform.machine(),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        kernel=platform.release(),
    )


def software(hello: Mapping[str, str]) -> dict[str, str]:
    """Versions, and how this Python was built: the same source differs by a quarter in speed with it."""
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return {
        "torch": hello["torch"],
        "cpu_capability": hello["cpu_capability"],
        "python": f"{platform.python_version()}, {'optimized build' if optimized else 'built without optimizations'}",
        "gnomon": _own_version(),
    }


def _own_version() -> str:
    """Our version, and the commit where we run from a checkout."""
    try:
        released = version("gnomon")
    except PackageNotFoundError:
        released = "unknown"
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return released
    return f"{released}, commit {commit}"
