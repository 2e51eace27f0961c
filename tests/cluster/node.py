"""The one node: an interface of its own, containerd, the kubelet, kube-proxy. As root.

Pods have a pair of virtual interfaces each and are routed, not bridged: replies then pass the kernel's connection tracking in any
case, and kube-proxy's address translation is undone. Nothing leaves the machine: pods have no masquerading and no name server
outside.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster import machine
from tests.cluster.control_plane import Certificates, free_port
from tests.cluster.phases import CannotBeHad, Trouble
from tests.cluster.processes import Programs
from tests.cluster.requirements import network_plugins
from tests.cluster.settings import (
    CONTROL_GROUP,
    DNS_ADDRESS,
    DOMAIN,
    INTERFACE,
    KUBELET_FOLDER,
    NODE,
    NODE_ADDRESS,
    POD_RANGE,
    image,
)

START_LIMIT_S = 30.0


@dataclass(frozen=True)
class Node:
    """A node: containerd and a kubelet. `server` is the apiserver's address."""

    state: Path
    programs: Path
    running: Programs

    @property
    def socket(self) -> Path:
        """The path of containerd's socket."""
        return self.state / "containerd.sock"

    def make_interface(self) -> None:
        """The node's address, before anything listens on it."""
        machine.set_sysctl("net/ipv4/ip_forward", "1")
        # A bridge without ports stands for a dummy interface, which fewer kernels have.
        for command in (
            f"link add {INTERFACE} type bridge",
            f"addr add {NODE_ADDRESS}/32 dev {INTERFACE}",
            f"link set {INTERFACE} up",
        ):
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if done.returncode:
                raise CannotBeHad(f"`ip {command}` fails here: {done.stderr.strip()}")

    def start_containerd(self) -> None:
        """Start it with our images; it answers when this returns."""
        (self.state / "cni").mkdir()
        (self.state / "cni" / "10-gnomon-test.conflist").write_text(json.dumps(network(self.state)))
        configuration = self.state / "containerd.toml"
        configuration.write_text(containerd(self.state))
        process = self.running.start("containerd", ["containerd", "--config", configuration])
        machine.enter_control_group(process.pid)
        self.running.wait(process, lambda: self.ctr("version", check=False), START_LIMIT_S)

    def ctr(self, *arguments: str | Path, check: bool = True) -> bool:
        """Run containerd's own command line, in the namespace where the kubelet's images and containers are."""
        command = ["ctr", "--address", self.socket, "--namespace", "k8s.io", *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise Trouble(f"ctr {' '.join(map(str, arguments))} failed: {done.stderr.strip()}")
        return done.returncode == 0

    def import_image(self, archive: Path) -> None:
        """Make an image known; no registry is asked for it afterwards."""
        self.ctr("images", "import", archive)

    def start_kubelet(self, certificates: Certificates, server: str) -> None:
        """The kubelet, which registers the node."""
        # Bound to itself and shared: CSI drivers mount things for pods from inside of their own.
        KUBELET_FOLDER.mkdir(parents=True, exist_ok=True)
        for how in (["--bind", KUBELET_FOLDER, KUBELET_FOLDER], ["--make-rshared", KUBELET_FOLDER]):
            subprocess.run(["mount", *map(str, how)], check=True)
        kubeconfig = certificates.kubeconfig("node", server, self.state / "kubelet.conf")
        (self.state / "resolv.conf").write_text("")
        configuration = self.state / "kubelet.yaml"
        configuration.write_text(yaml.safe_dump(kubelet(self.state, certificates)))
        flags = {
            "config": configuration,
            "kubeconfig": kubeconfig,
            "hostname-override": NODE,
            "node-ip": NODE_ADDRESS,
            "root-dir": KUBELET_FOLDER,
            "cert-dir": self.state / "kubelet-certificates",
        }
        process = self.running.start(
            "kubelet", [self.programs / "kubelet", *(f"--{name}={value}" for name, value in flags.items())]
        )
        machine.enter_control_group(process.pid)

    def start_proxy(self, certificates: Certificates, server: str) -> None:
        """kube-proxy, which makes the services' addresses lead to pods."""
        kubeconfig = certificates.kubeconfig("proxy", server, self.state / "kube-proxy.conf")
        configuration = self.state / "kube-proxy.yaml"
        configuration.write_text(yaml.safe_dump(proxy(kubeconfig)))
        process = self.running.start("kube-proxy", [self.programs / "kube-proxy", f"--config={configuration}"])
        machine.enter_control_group(process.pid)


def network(state: Path) -> dict[str, object]:
    """The CNI configuration: how a pod gets its address."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": POD_RANGE}]], "routes": [{"dst": "0.0.0.0/0"}]}
    addresses["dataDir"] = str(state / "addresses")
    return {"cniVersion": "0.4.0", "name": CONTROL_GROUP, "plugins": [{"type": "ptp", "ipMasq": False, "ipam": addresses}]}


def containerd(state: Path) -> str:
    """The configuration of containerd: everything below the state folder, except what the shims put into /run/containerd."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    runc = f"{cri}.containerd.runtimes.runc"
    unused = [f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "devmapper", "zfs")]
    return f"""\
version = 2
root = "{state}/containerd"
state = "{state}/containerd-run"
disabled_plugins = {json.dumps([*unused, "io.containerd.tracing.processor.v1.otlp"])}
[grpc]
address = "{state}/containerd.sock"
[debug]
level = "warn"
[plugins."io.containerd.internal.v1.opt"]
path = "{state}/containerd-opt"
[{cri}]
# Root may lack CAP_SYS_RESOURCE; without this every sandbox dies with "can't get final child's PID from pipe: EOF".
restrict_oom_score_adj = true
sandbox_image = "{image("pause")}"
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
[{cri}.cni]
bin_dir = "{network_plugins()}"
conf_dir = "{state}/cni"
[{cri}.containerd]
default_runtime_name = "runc"
snapshotter = "overlayfs"
[{runc}]
runtime_type = "io.containerd.runc.v2"
[{runc}.options]
SystemdCgroup = false
Root = "{state}/runc"
"""


def kubelet(state: Path, certificates: Certificates) -> dict[str, object]:
    """The kubelet's configuration."""
    certificate, key = certificates.of("apiserver")
    socket = f"unix://{state}/containerd.sock"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "port": free_port(NODE_ADDRESS),
        "readOnlyPort": 0,
        "healthzPort": 0,
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(certificates.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": DOMAIN,
        "resolvConf": str(state / "resolv.conf"),
        "containerRuntimeEndpoint": socket,
        "imageServiceEndpoint": socket,
        "podLogsDir": str(state / "pods"),
        "volumePluginDir": str(state / "volume-plugins"),
        "staticPodPath": "",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CONTROL_GROUP}",
        # Version 1 of control groups still is what some machines have; 1.35 refuses it by default.
        "failCgroupV1": False,
        "failSwapOn": False,
        # Raising a process's priority against the kernel's memory killer needs CAP_SYS_RESOURCE.
        "oomScoreAdj": 0,
        # Otherwise chains of iptables stay behind.
        "makeIPTablesUtilChains": False,
        # Images come by import, so none may be thrown away, and a machine whose disk is full otherwise still serves tests.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "serializeImagePulls": False,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
    }


def proxy(kubeconfig: Path) -> dict[str, object]:
    """kube-proxy's configuration."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 100, "burst": 200},
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": NODE,
        "nodePortAddresses": [f"{NODE_ADDRESS}/32"],
        "healthzBindAddress": f"127.0.0.1:{free_port()}",
        "metricsBindAddress": f"127.0.0.1:{free_port()}",
        # The default of 1 s is how long a new service's address led nowhere.
        "nftables": {"minSyncPeriod": "100ms"},
        # The kernel's table of connections is the machine's, not ours.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
