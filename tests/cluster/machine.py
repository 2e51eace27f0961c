"""The state of this machine that a cluster changes: control groups, mounts, interfaces, nftables and iptables, sysctls, folders.

`look` is asked before a boot and again after the end: whatever is there then and was not before has been left behind. Every
program of the cluster is in one control group, so that its processes are found and ended whoever is their parent: programs in
its group `programs`, pods in `kubepods`. Version 1 of control groups has a hierarchy for each controller, version 2 one for all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.phases import Trouble
from tests.cluster.settings import CONTROL_GROUP

CGROUPS = Path("/sys/fs/cgroup")
SYSCTLS = Path("/proc/sys")

# Settings of the kernel that the kubelet, kube-proxy or we write, where they exist.
WRITTEN_SYSCTLS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/conf/all/forwarding",
    "net/ipv6/conf/all/forwarding",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)

# Folders outside of the state folder that the kubelet, containerd or the network plugins make by names of their own.
MADE_PATHS = (
    "/etc/cni/net.d",
    "/opt/cni",
    "/opt/containerd",
    "/run/containerd",
    "/run/netns",
    "/usr/libexec/kubernetes",
    "/var/lib/calico",
    "/var/lib/cni",
    "/var/lib/cni/results",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)

Machine = dict[str, list[str]]


def look() -> Machine:
    """Everything that a cluster could leave behind, as sorted lists of names."""
    seen: dict[str, Callable[[], list[str]]] = {
        "mounts": mounts,
        "interfaces": interfaces,
        "nftables": lambda: asked(["nft", "list", "tables"]),
        "iptables": lambda: [
            line for line in asked(["iptables-save"]) + asked(["ip6tables-save"]) if line.startswith((":", "-A"))
        ],
        "cgroups": cgroups,
        "sysctls": lambda: [f"{name}={value}" for name, value in sysctls().items()],
        "paths": lambda: [path for name in MADE_PATHS for path in beneath(Path(name))],
    }
    return {what: sorted(find()) for what, find in seen.items()}


def left(before: Machine, after: Machine) -> list[str]:
    """The names that `after` has beyond `before`, in words."""
    return [f"{what}: {name}" for what, names in after.items() for name in sorted(set(names) - set(before.get(what, [])))]


def mounts() -> list[str]:
    """All mount points; a path appears twice if two file systems are mounted there."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines]


def interfaces() -> list[str]:
    """The names of the network interfaces."""
    return [path.name for path in Path("/sys/class/net").iterdir()]


def cgroups() -> list[str]:
    """The topmost groups of each hierarchy; what is below one is that one's. Those of Gnomon's functions are no cluster's."""
    roots = [CGROUPS, *(path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())]
    found = [path for root in roots for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    return [str(path) for path in found if path.name == CONTROL_GROUP or not path.name.startswith("gnomon-")]


def sysctls() -> dict[str, str]:
    """The values of those that may be written."""
    return {name: (SYSCTLS / name).read_text().strip() for name in WRITTEN_SYSCTLS if (SYSCTLS / name).exists()}


def set_sysctl(name: str, value: str) -> None:
    """Write one, if it has another value."""
    path = SYSCTLS / name
    if path.exists() and path.read_text().strip() != value:
        path.write_text(value)


def beneath(path: Path) -> list[str]:
    """A path and what lies directly in it, where it exists."""
    return [str(path), *map(str, path.iterdir())] if path.is_dir() else []


def asked(command: list[str]) -> list[str]:
    """The lines of a command's answer; none where the machine has no such command, or it knows nothing."""
    if not shutil.which(command[0]):
        return []
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def save(machine: Machine, path: Path) -> None:
    """Save the state for the teardown, which may run in another process."""
    path.write_text(json.dumps(machine))


def saved(path: Path) -> Machine:
    """Read a saved state; empty if none was saved."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


PROGRAMS = "programs"
CONTROL_GROUP_LIMIT_S = 10.0


def control_group_hierarchies() -> list[Path]:
    """The roots: one with version 2, else one for each controller that is mounted, and version 2 beside them if it is there."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    kinds = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(place) for _, place, kind, *_ in kinds if kind in ("cgroup", "cgroup2")]


def make_control_groups() -> None:
    """The group in each hierarchy; with version 2 it gets the controllers that a kubelet wants."""
    for root in control_group_hierarchies():
        if root == CGROUPS:
            (root / "cgroup.subtree_control").write_text("+cpu +cpuset +memory +pids +io")
        group = root / CONTROL_GROUP
        group.mkdir(exist_ok=True)
        if (root / "cpuset.cpus").exists() and root != CGROUPS:
            # A new cpuset of version 1 is empty, and nobody can enter an empty one.
            for name in ("cpuset.cpus", "cpuset.mems"):
                (group / name).write_text((root / name).read_text())
    _tracking_group().mkdir(exist_ok=True)


def _tracking_group() -> Path:
    """The group by which our programs and their children are known. Its controller limits nothing."""
    roots = control_group_hierarchies()
    named = next((root for root in roots if root.name in ("pids", "systemd")), roots[0])
    return named / CONTROL_GROUP / PROGRAMS


def enter_control_group(pid: int) -> None:
    """A program, and from then on whatever it starts, is one of ours."""
    (_tracking_group() / "cgroup.procs").write_text(str(pid))


def control_group_members() -> list[int]:
    """Every process in our group or below it."""
    found: set[int] = set()
    for root in control_group_hierarchies():
        for path in (root / CONTROL_GROUP).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in path.read_text().split()}
    return sorted(found - {os.getpid(), 0})


def end_control_groups() -> None:
    """Kill whoever is left in it, and remove it."""
    deadline_s = time.monotonic() + CONTROL_GROUP_LIMIT_S
    while remaining := control_group_members():
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise Trouble(f"Processes {remaining} of the cluster do not end.")
        time.sleep(0.05)
    for root in control_group_hierarchies():
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
