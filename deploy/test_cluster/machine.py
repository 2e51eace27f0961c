"""What a cluster can leave on a machine: mounts, interfaces, nftables, chains of iptables, control groups, sysctls, folders.

`look` is asked before a boot and again after the end. Whatever is there then and was not before has been left behind.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from deploy.test_cluster.settings import CONTROL_GROUP

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
    """What has come since, in words."""
    return [f"{what}: {name}" for what, names in after.items() for name in sorted(set(names) - set(before.get(what, [])))]


def mounts() -> list[str]:
    """Where something is mounted; a place twice where two things are."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines]


def interfaces() -> list[str]:
    """Of the network."""
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
    """For the end, which may be another process's."""
    path.write_text(json.dumps(machine))


def saved(path: Path) -> Machine:
    """As it was then; nothing where nothing was written."""
    return dict(json.loads(path.read_text())) if path.exists() else {}
