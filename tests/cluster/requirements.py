"""The packages and rights that the machine lacks for a cluster, by name; root may have Debian's packages installed.

Whoever cannot be reached is not waited for: what is asked of a network has a limit, after which it counts as refused.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cluster import machine
from tests.cluster.machine import SYSCTLS
from tests.cluster.phases import CannotBeHad, Phases
from tests.cluster.settings import HERE, INTERFACE, KUBELET_FOLDER, Folders

GO = (1, 26)
PLUGIN_FOLDERS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
PLUGINS = ("ptp", "host-local", "loopback")
BUILD_GB = 7.0  # measured: 0.9 of programs, 1.5 of modules and 3.6 of Go's build cache
STATE_GB = 2.0
VERSION_LIMIT_S = 120.0
"""For a `go` that fetches a newer one first, 70 MB."""
PACKAGES_LIMIT_S = 600.0
# A server that says nothing is given up after this; another program that holds apt's lock is waited for.
APT = ("-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20", "-o", "Acquire::Retries=1")
APT_LOCK = ("-o", "DPkg::Lock::Timeout=120")

# What is looked for → Debian's package that has it. Installed only where it is missing: Docker's containerd does as well.
COMMANDS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "openssl": "openssl",
    "setpriv": "util-linux",
}
# The same for building our images.
BUILDING = {"buildah": "buildah", "debootstrap": "debootstrap"}


def network_plugins() -> Path:
    """The folder of the network plugins; Debian's place if there is none yet."""
    whole = (folder for folder in PLUGIN_FOLDERS if all((folder / name).exists() for name in PLUGINS))
    return next(whole, PLUGIN_FOLDERS[-1])


def packages() -> list[str]:
    """Debian's packages that a node needs and that are not there."""
    wanted = _missing(COMMANDS)
    if not all((network_plugins() / name).exists() for name in PLUGINS):
        wanted.add("containernetworking-plugins")
    return sorted(wanted)


def check_node(folders: Folders) -> None:
    """Refuse a machine on which a node cannot be started, before anything is changed on it."""
    if not sys.platform.startswith("linux"):
        raise CannotBeHad("a node needs Linux; set KUBECONFIG to the cluster that is to be used")
    if os.geteuid():
        raise CannotBeHad("a node needs root; run as root, or set KUBECONFIG to the cluster that is to be used")
    lacking = [name for name, bit in CAPABILITIES.items() if not effective_capabilities() >> bit & 1]
    if lacking:
        raise CannotBeHad(f"root lacks {' and '.join(lacking)} here, as in a container; a node needs --privileged")
    if not os.access(SYSCTLS / "net/ipv4/ip_forward", os.W_OK) or not machine.control_group_hierarchies():
        raise CannotBeHad("this container may not make routes or control groups; a node needs --privileged")
    if KUBELET_FOLDER.exists() and any(KUBELET_FOLDER.iterdir()):
        raise CannotBeHad(f"{KUBELET_FOLDER} is not empty: this machine is a node of another cluster")
    if Path("/sys/class/net", INTERFACE).exists():
        raise CannotBeHad(f"the interface {INTERFACE} exists: a cluster with another cache folder runs here")
    check_disk_space(folders.cache, STATE_GB)


def effective_capabilities() -> int:
    """Of this process, as bits."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 16) if found else 0


def check_builder(phases: Phases) -> None:
    """Refuse where no image can be built; install what is missing for it."""
    if not sys.platform.startswith("linux") or os.geteuid():
        raise CannotBeHad("images are built by root, on Linux")
    install_packages(phases, lambda: sorted(_missing(BUILDING)))


def _missing(commands: Mapping[str, str]) -> set[str]:
    return {package for command, package in commands.items() if not shutil.which(command)}


def install_packages(phases: Phases, lacking: Callable[[], list[str]] = packages) -> None:
    """Install the missing packages by apt, after saying so."""
    wanted = lacking()
    if not wanted:
        return
    if not shutil.which("apt-get"):
        raise CannotBeHad(f"not installed: {', '.join(wanted)}, and there is no apt-get to install them with")
    phases.say(f"           installing Debian's {', '.join(wanted)}; they stay when the cluster is gone")
    with phases.phase("Debian packages"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        # Whatever another package of the machine would have to go for, nothing is removed.
        install = ["apt-get", *APT, *APT_LOCK, "install", "--yes", "--quiet", "--no-install-recommends", "--no-remove", *wanted]
        done = _apt(install, quiet)
        if done.returncode:
            _apt(["apt-get", *APT, *APT_LOCK, "update", "--quiet"], quiet)
            done = _apt(install, quiet)
    if done.returncode or lacking():
        raise CannotBeHad(f"apt-get could not install {', '.join(lacking() or wanted)}: {done.stderr.strip()[-300:]}")


def _apt(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=PACKAGES_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        said = f"it was not done after {PACKAGES_LIMIT_S:.0f} s"
        return subprocess.CompletedProcess(command, 1, "", said)


def check_go() -> None:
    """Refuse where nothing can be compiled."""
    wanted = f"Go {GO[0]}.{GO[1]} or newer (any from 1.21 on fetches it, unless GOTOOLCHAIN=local)"
    if not shutil.which("go"):
        raise CannotBeHad(f"there is no `go`: {wanted}")
    try:
        said = subprocess.run(
            ["go", "version"], cwd=HERE / "programs", capture_output=True, text=True, check=False, timeout=VERSION_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise CannotBeHad(f"{wanted}; it could not be fetched within {VERSION_LIMIT_S:.0f} s") from error
    found = re.search(r"go(\d+)\.(\d+)", said.stdout)
    if said.returncode or not found or (int(found[1]), int(found[2])) < GO:
        raise CannotBeHad(f"{wanted}; `go version` says: {(said.stdout or said.stderr).strip()}")


def check_disk_space(folder: Path, gigabytes: float) -> None:
    """Refuse where the disk has less."""
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < gigabytes:
        raise CannotBeHad(f"{gigabytes} GB of disk are needed in {folder}, {free_gb:.1f} are free")
