"""Ends a cluster and removes what it made, from what was written down before it was made.

Nothing here asks the apiserver or containerd, so it works on whatever a crash has left. The order: programs, then every
process in the cluster's control group, then mounts, interfaces, tables, chains and folders that were not there before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from deploy.test_cluster import control_groups, machine
from deploy.test_cluster.phases import Phases, Trouble
from deploy.test_cluster.processes import Programs
from deploy.test_cluster.settings import INTERFACE, KUBELET_FOLDER, Folders

BEFORE = "machine-before.json"
SYSCTLS = "sysctls-before.json"
PATIENCE_S = 10.0

# Tables that kube-proxy makes; they are removed where the cluster brought them.
TABLES = ("table ip kube-proxy", "table ip6 kube-proxy")


def end(folders: Folders, phases: Phases) -> None:
    """End the cluster whose state is in the folder. Does nothing where there is none; Trouble where something stays behind."""
    if not folders.state.exists():
        return
    before = machine.saved(folders.state / BEFORE)
    with phases.phase("end"):
        for process in reversed(Programs(folders.state).all()):
            process.end(patience_s=0)  # all that they know is about to be removed
        if os.geteuid() == 0 and before:
            control_groups.end()
            _unmount([folders.state, KUBELET_FOLDER, Path("/run/containerd")], before["mounts"])
            _remove_network(before)
            for setting in machine.saved(folders.state / SYSCTLS).get("sysctls", []):
                name, _, value = setting.partition("=")
                machine.set_sysctl(name, value)
            _remove_paths(before["paths"])
        shutil.rmtree(folders.state)
        behind = _left(before)
    if behind:
        raise Trouble("this was not on the machine before the cluster, and is there after it:\n" + "\n".join(behind))


def _left(before: machine.Machine) -> list[str]:
    """What has stayed. The kernel takes its time over namespaces and groups, so it is asked until it has finished."""
    deadline_s = time.monotonic() + PATIENCE_S
    while before and (behind := machine.left(before, machine.look())):
        if time.monotonic() > deadline_s:
            return behind
        time.sleep(0.2)
    return []


def _unmount(places: list[Path], before: list[str]) -> None:
    """Everything that is mounted below these and was not, the deepest first."""
    there = [mount for mount in machine.mounts() if any(Path(mount).is_relative_to(place) for place in places)]
    for mount in before:
        if mount in there:
            there.remove(mount)
    for mount in sorted(there, key=len, reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=True, capture_output=True)


def _remove_network(before: machine.Machine) -> None:
    """The node's interface and kube-proxy's tables. Pods' interfaces go with their namespaces, soon after the last process."""
    if INTERFACE in machine.interfaces():
        subprocess.run(["ip", "link", "delete", INTERFACE], check=True)
    for table in set(machine.asked(["nft", "list", "tables"])) & set(TABLES) - set(before["nftables"]):
        subprocess.run(["nft", "delete", *table.split()], check=True)
    deadline_s = time.monotonic() + PATIENCE_S
    while pods := [name for name in machine.interfaces() if name.startswith("veth") and name not in before["interfaces"]]:
        if time.monotonic() > deadline_s:
            for name in pods:
                subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
            return
        time.sleep(0.05)


def _remove_paths(before: list[str]) -> None:
    """Folders that programs make by names of their own, and what they put into those that were there."""
    for name in machine.MADE_PATHS:
        path = Path(name)
        if name not in before:
            shutil.rmtree(path, ignore_errors=True)
        for made in set(machine.beneath(path)) - set(before):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(made) if Path(made).is_dir() and not Path(made).is_symlink() else Path(made).unlink()
