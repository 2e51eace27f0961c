"""The control group that the whole cluster is in, so that its processes can be found and ended, whoever is their parent.

Version 1 has a hierarchy for each controller, version 2 one for all. Programs are in `programs`, pods beside it in `kubepods`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from deploy.test_cluster.machine import CGROUPS
from deploy.test_cluster.phases import Trouble
from deploy.test_cluster.settings import CONTROL_GROUP

PROGRAMS = "programs"
PATIENCE_S = 10.0


def hierarchies() -> list[Path]:
    """The roots: one with version 2, else one for each controller that is mounted, and version 2 beside them if it is there."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    kinds = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(place) for _, place, kind, *_ in kinds if kind in ("cgroup", "cgroup2")]


def make() -> None:
    """The group in each hierarchy; with version 2 it gets the controllers that a kubelet wants."""
    for root in hierarchies():
        if root == CGROUPS:
            (root / "cgroup.subtree_control").write_text("+cpu +cpuset +memory +pids +io")
        group = root / CONTROL_GROUP
        group.mkdir(exist_ok=True)
        if (root / "cpuset.cpus").exists() and root != CGROUPS:
            # A new cpuset of version 1 is empty, and nobody can enter an empty one.
            for name in ("cpuset.cpus", "cpuset.mems"):
                (group / name).write_text((root / name).read_text())
    tracking().mkdir(exist_ok=True)


def tracking() -> Path:
    """The group by which our programs and their children are known. Its controller limits nothing."""
    roots = hierarchies()
    named = next((root for root in roots if root.name in ("pids", "systemd")), roots[0])
    return named / CONTROL_GROUP / PROGRAMS


def enter(pid: int) -> None:
    """A program, and from then on whatever it starts, is one of ours."""
    (tracking() / "cgroup.procs").write_text(str(pid))


def members() -> list[int]:
    """Every process in our group or below it."""
    found: set[int] = set()
    for root in hierarchies():
        for path in (root / CONTROL_GROUP).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in path.read_text().split()}
    return sorted(found - {os.getpid(), 0})


def end() -> None:
    """Kill whoever is left in it, and remove it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while left := members():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise Trouble(f"Processes {left} of the cluster do not end.")
        time.sleep(0.05)
    for root in hierarchies():
        groups = [path for path in (root / CONTROL_GROUP).rglob("*") if path.is_dir()]
        for group in [*sorted(groups, key=lambda path: -len(path.parts)), root / CONTROL_GROUP]:
            _remove(group, deadline_s)


def _remove(group: Path, deadline_s: float) -> None:
    """A group can be removed a moment after its last process has ended."""
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)
