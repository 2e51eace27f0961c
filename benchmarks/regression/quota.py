"""A bound on the processor time of one process: a control group of its own, of version 1 or 2.

The kernel gives a group `quota` microseconds in every period and stops it until the next one when they are used up. AWS Lambda
does so by memory: 885 MB are half a core, 10 ms in every 20 ms. Making a group needs root, or a part of the tree that was
delegated (`systemd-run --user --scope -p Delegate=yes …`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

LEAST_US = 1000
"""The kernel takes no shorter quota and no shorter period."""
NO_BOUND_V1, NO_BOUND_V2 = "-1", "max"
EMPTY_LIMIT_S = 5.0


class NoQuotaError(RuntimeError):
    """This machine does not let us bound processor time."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups are made, and whether the files there are version 2's."""

    parent: Path
    unified: bool


class Quota:
    """A group for the length of a block. It is empty at first; what joins has to have ended when the block ends.

    `number` tells the groups of one process apart.
    """

    def __init__(self, period_us: int, hierarchy: Hierarchy | None = None, number: int = 0) -> None:
        found = hierarchy or hierarchy_of(Path("/proc/mounts").read_text(), Path("/proc/self/cgroup").read_text())
        if found is None:
            raise NoQuotaError("no control group here has a controller for processor time")
        self._unified = found.unified
        self._period_us = period_us
        self._folder = found.parent / f"gnomon-quota-{os.getpid()}-{number}"

    def __enter__(self) -> Self:
        with _explained(self._folder):
            if self._unified and not _controls_cpu(self._folder.parent):
                (self._folder.parent / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir()
        try:
            self.lift()
        except BaseException:
            self._folder.rmdir()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        end_s = time.monotonic() + EMPTY_LIMIT_S
        while True:
            try:
                self._folder.rmdir()
            except OSError:  # whoever was in it is still being cleared away
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.01)
            else:
                return

    def join(self, pid: int) -> None:
        """Put a process with all its threads into the group."""
        with _explained(self._folder):
            (self._folder / "cgroup.procs").write_text(str(pid))

    def set(self, cores: float) -> None:
        """Give the group so many cores, also parts of one.

        Raises:
            ValueError: less than the kernel can give in a period.

        """
        quota_us = round(cores * self._period_us)
        if quota_us < LEAST_US:
            raise ValueError(f"{cores:g} cores are {quota_us} µs of {self._period_us}; at least {LEAST_US} can be given")
        self._write(str(quota_us))

    def lift(self) -> None:
        """Bound nothing."""
        self._write(NO_BOUND_V2 if self._unified else NO_BOUND_V1)

    def _write(self, quota: str) -> None:
        with _explained(self._folder):
            if self._unified:
                (self._folder / "cpu.max").write_text(f"{quota} {self._period_us}")
            else:
                (self._folder / "cpu.cfs_period_us").write_text(str(self._period_us))
                (self._folder / "cpu.cfs_quota_us").write_text(quota)


def hierarchy_of(mounts: str, own: str) -> Hierarchy | None:
    """Where to make a group, from /proc/mounts and /proc/self/cgroup: below our own, by version 1 if that has the controller."""
    unified: Hierarchy | None = None
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in own.splitlines())}
    for line in mounts.splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            path = next((path for names, path in paths.items() if "cpu" in names.split(",")), "/")
            return Hierarchy(_below(place, path), unified=False)
        if kind == "cgroup2" and unified is None:
            unified = Hierarchy(_below(place, paths.get("", "/")), unified=True)
    return unified


def _below(place: str, path: str) -> Path:
    """Our own group; where the mount does not show it, as in a container, the mount's root is ours."""
    own = Path(place) / path.lstrip("/")
    return own if own.is_dir() else Path(place)


def _controls_cpu(parent: Path) -> bool:
    return "cpu" in (parent / "cgroup.subtree_control").read_text().split()


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NoQuotaError(
            f"{folder} cannot bound processor time: {error}. Run as root, or under `systemd-run --user --scope -p Delegate=yes`."
        ) from error
