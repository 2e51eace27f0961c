"""Does the cluster's network enforce NetworkPolicies? It says so nowhere: agents that are known to do it are looked for.

A network without one of them may do it in a way of its own, as some clouds' do. Only trying tells, which is not done here because
nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gnomon_cli.doctor.findings import Level
from gnomon_cli.doctor.looking import Cluster
from gnomon_cli.doctor.shadows import DAEMON_SETS
from gnomon_platforms.kubernetes.resources import NODES

AGENTS = frozenset(
    {
        "anetd",  # Google's, of dataplane V2
        "antrea-agent",
        "azure-npm",
        "calico-node",
        "canal",
        "cilium",
        "kube-network-policies",
        "kube-ovn-cni",
        "kube-router",
        "ovnkube-node",
    }
)
"""DaemonSets by which networks enforce policies, as their projects' own manifests name them."""
K3S = "+k3s"
"""In the version of its kubelets: it enforces policies itself, unless it was told not to."""
K3S_ARGUMENTS, K3S_WITHOUT = "k3s.io/node-args", "--disable-network-policy"
TRY = 'Try it: docs/howto/install-on-kubernetes.md, "Does the network enforce policies?"'


def network_policies(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether anything is known to enforce them here.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    return enforced(cluster.items(DAEMON_SETS.path()), cluster.items(NODES.path()))


def enforced(daemons: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]) -> tuple[Level, str, str]:
    """What the agents and nodes of a cluster say of it."""
    agents = [one for one in daemons if one["metadata"]["name"] in AGENTS]
    if agents:
        [agent, *_] = sorted(agents, key=_lacking)
        name = f"{agent['metadata']['name']} in {agent['metadata']['namespace']}"
        if lacking := _lacking(agent):
            look = f"kubectl -n {agent['metadata']['namespace']} get pods -o wide"
            wanted = agent["status"]["desiredNumberScheduled"]
            return Level.WARN, f"{name} enforces NetworkPolicies, and is not ready on {lacking} of {wanted} nodes.", look
        return Level.OK, f"{name} enforces NetworkPolicies.", ""
    there = list(nodes)
    if there and all(_k3s_enforces(node) for node in there):
        return Level.OK, "k3s enforces NetworkPolicies.", ""
    said = "Nothing is here that is known to enforce NetworkPolicies: unless the network does, any pod may speak to functions."
    return Level.WARN, said, TRY


def _lacking(daemon: Mapping[str, Any]) -> int:
    """On how many nodes it should be ready and is not."""
    status = daemon.get("status") or {}
    return max(int(status.get("desiredNumberScheduled", 0)) - int(status.get("numberReady", 0)), 0)


def _k3s_enforces(node: Mapping[str, Any]) -> bool:
    version = ((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion", "")
    told = (node["metadata"].get("annotations") or {}).get(K3S_ARGUMENTS, "")
    return K3S in version and K3S_WITHOUT not in told
