"""Boots the whole cluster, phase by phase, and ends it again.

The end asks neither the apiserver nor containerd, so it works on whatever a crash has left. The order: programs, then every
process in the cluster's control group, then mounts, interfaces, tables, chains and folders that were not there before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import build, control_plane, knative, machine, requirements
from tests.cluster.client import Kubectl, documents
from tests.cluster.images import Image
from tests.cluster.node import Node
from tests.cluster.phases import Phases, Trouble
from tests.cluster.processes import Programs
from tests.cluster.settings import HERE, INTERFACE, KUBELET_FOLDER, NODE, Folders, image

NODE_LIMIT_S = 60.0
NAMES_LIMIT_S = 120.0
UP = "up"
LAST_LOGS = "last-logs"  # of a boot that failed

# Image → the program in it. Each is one static file in an otherwise empty image.
IMAGES = {name: name for name in ("activator", "answer", "autoscaler", "controller", "coredns", "pause", "queue", "webhook")}


@dataclass(frozen=True)
class Running:
    """A running cluster."""

    folders: Folders
    compiled: build.Programs

    @property
    def node(self) -> Node:
        return Node(self.folders.state, self.compiled.folder, Programs(self.folders.state))

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.compiled.folder / "kubectl", self.folders.kubeconfig)


def runs(folders: Folders) -> Running | None:
    """The cluster, if it runs; None also where something of one was left, say by a reboot."""
    compiled = build.kept(folders)
    processes = Programs(folders.state).all()
    if compiled and (folders.state / UP).exists() and processes and all(process.runs() for process in processes):
        return Running(folders, compiled)
    return None


def up(folders: Folders, phases: Phases) -> Running:
    """Boot it. What was left of an earlier one is removed first; if the boot fails, so is what it made."""
    if running := runs(folders):
        return running
    if folders.state.exists():
        end(folders, phases)
    shutil.rmtree(folders.cache / LAST_LOGS, ignore_errors=True)
    requirements.check_node(folders)
    build.check(folders)
    requirements.install_packages(phases)
    compiled = build.programs(folders, phases)
    archives = write_images(compiled, phases)
    folders.state.mkdir(mode=0o700, parents=True)
    machine.save(machine.look(), folders.state / BEFORE)
    machine.save({"sysctls": [f"{name}={value}" for name, value in machine.sysctls().items()]}, folders.state / SYSCTLS)
    try:
        _boot(Running(folders, compiled), archives, phases)
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.copytree(folders.logs, folders.cache / LAST_LOGS)
            phases.say(f"           the logs are kept in {folders.cache / LAST_LOGS}")
        end(folders, phases)
        raise
    (folders.state / UP).touch()
    return Running(folders, compiled)


def write_images(compiled: build.Programs, phases: Phases) -> list[Path]:
    """The archives of our images, kept beside the programs that are in them."""
    archives = {name: compiled.folder / "images" / f"{name}.tar" for name in IMAGES}
    if not all(archive.exists() for archive in archives.values()):
        with phases.phase("images"):
            for name, archive in archives.items():
                Image(image(name), {name: compiled.folder / IMAGES[name]}, [f"/{name}"]).write(archive)
    return list(archives.values())


def _boot(running: Running, archives: list[Path], phases: Phases) -> None:
    """Each part as soon as what it needs is there."""
    state, node = running.folders.state, running.node
    plane = control_plane.whole(state, running.compiled.folder)
    with phases.phase("containerd"):
        machine.make_control_groups()
        node.make_interface()
        node.start_containerd()
    # Importing waits for the disk, booting a control plane for the processor.
    with phases.phase("control plane and images"), ThreadPoolExecutor() as pool:
        imports = [pool.submit(node.import_image, archive) for archive in archives]
        server = plane.boot()
        plane.start_controllers(server)
        for done in imports:
            done.result()
    with phases.phase("node"):
        node.start_kubelet(plane.certificates, server)
        node.start_proxy(plane.certificates, server)
        _wait_for_node(running)
    with phases.phase("names"):
        running.kubectl.apply(documents(HERE / "manifests" / "coredns.yaml"))
        running.kubectl.available("kube-system", ["coredns"], NAMES_LIMIT_S)
    with phases.phase("Knative"):
        knative.install(running.kubectl, running.compiled.manifests)


def _wait_for_node(running: Running) -> None:
    """Until the node is ready. kubectl cannot wait for what is not there, so it is first waited for to be there."""
    deadline_s = time.monotonic() + NODE_LIMIT_S
    while not running.kubectl("get", "nodes", "-o", "name").strip():
        for process in running.node.running.all():
            if not process.runs():
                raise Trouble(f"{process.name} ended by itself:\n{running.node.running.last_words(process.name)}")
        if time.monotonic() > deadline_s:
            raise Trouble(f"the kubelet did not register its node:\n{running.node.running.last_words('kubelet')}")
        time.sleep(0.1)
    running.kubectl("wait", f"node/{NODE}", "--for=condition=Ready", f"--timeout={NODE_LIMIT_S:.0f}s")


@contextlib.contextmanager
def borrowed(folders: Folders, phases: Phases) -> Iterator[Path]:
    """A kubeconfig: of the cluster that KUBECONFIG names, of the one that runs, or of one that ends with this block."""
    if given := os.environ.get("KUBECONFIG"):
        yield named(given)
        return
    with alone(folders, phases):
        if runs(folders):
            yield folders.kubeconfig
            return
        up(folders, phases)
        phases.total("until the cluster served")
        try:
            yield folders.kubeconfig
        finally:
            end(folders, phases)


def named(text: str) -> Path:
    """The one file that KUBECONFIG names, wherever a test goes from here.

    Raises:
        Trouble: there is none, or KUBECONFIG is a list, as kubectl alone reads it.

    """
    if os.pathsep in text:
        raise Trouble("KUBECONFIG names several files: `kubectl config view --flatten --minify > one.conf` makes one of them")
    path = Path(text).resolve()
    if not path.is_file():
        raise Trouble(f"KUBECONFIG names {text}, and there is no such file")
    return path


def alone(folders: Folders, phases: Phases) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of the one cluster: commands neither boot it concurrently nor end it during another's tests."""
    return phases.alone(folders.cache / "in-use", "boots, uses or ends the cluster")


BEFORE = "machine-before.json"
SYSCTLS = "sysctls-before.json"
TEARDOWN_LIMIT_S = 10.0

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
            machine.end_control_groups()
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
    """The traces of the cluster on this machine, once the kernel has removed namespaces and groups, which takes it some time."""
    deadline_s = time.monotonic() + TEARDOWN_LIMIT_S
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
    deadline_s = time.monotonic() + TEARDOWN_LIMIT_S
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
