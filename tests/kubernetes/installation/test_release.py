"""The chart as helm installs, upgrades, rolls back and removes it, by the commands of the how-to: what users have made stays."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, until
from tests.kubernetes.conftest import accounts, plane
from tests.kubernetes.installation.forms import CHART, DEPLOY, Manifest, Name, by_name, chart, helm, settings

SYSTEM, FUNCTIONS, SERVING, RELEASE = "openfaas", "openfaas-fn", "knative-serving", "gnomon"
HOW_TO = DEPLOY.parent / "docs" / "howto"
NEWER = ("replicas=3", "clusterWide=true", "knative.autoscaler.enabled=true")
LOGIN = {"basic-auth-user": "admin", "basic-auth-password": "of the operator"}


@pytest.fixture
def bare(compiled: build.Programs) -> Iterator[Cluster]:
    """Empty, with controllers, which remove what belongs to what is removed."""
    del compiled
    with plane(controllers=True) as made:
        made.core.create_namespace({"metadata": {"name": SERVING}})
        yield made


@pytest.fixture
def kubectl(bare: Cluster, compiled: build.Programs) -> Kubectl:
    return Kubectl(compiled.folder / "kubectl", bare.kubeconfig)


def commands(how_to: str, begins: str) -> list[list[str]]:
    """The commands of a how-to's block of them that has one which begins so, for a chart that lies in this clone."""
    blocks = re.split(r"^ *```.*$", (HOW_TO / how_to).read_text(), flags=re.MULTILINE)[1::2]
    [block] = [block for block in blocks if re.search(rf"^ *{begins}", block, re.MULTILINE)]
    lines = block.replace("\\\n", " ").replace("$REGISTRY", "registry.example").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [[str(CHART) if word == "deploy/charts/gnomon" else word for word in line] for line in words if line]


def released(bare: Cluster) -> dict[Name, Manifest]:
    """The objects of the release, by helm."""
    return by_name(yaml.safe_load_all(helm(bare.kubeconfig, "get", "manifest", RELEASE, "--namespace", SYSTEM)))


def there(kubectl: Kubectl, names: set[Name]) -> set[Name]:
    """Which of these the cluster has, and does not remove."""
    found = set()
    for kind, namespace, name in names:
        where = ["--namespace", namespace] if namespace else []
        said = kubectl("get", kind, name, *where, "--ignore-not-found", "-o", "json")
        if said and not json.loads(said)["metadata"].get("deletionTimestamp"):
            found.add((kind, namespace, name))
    return found


def function(bare: Cluster) -> None:
    """A user's, and what the operator and the processes have written."""
    labels = {"faas_function": "echo"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "echo", "image": "x/echo:1"}]}}
    deployment = {
        "metadata": {"name": "echo"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    until(lambda: accounts(bare, FUNCTIONS), "the service account")
    bare.apps.create_namespaced_deployment(FUNCTIONS, deployment)
    bare.core.create_namespaced_secret(SYSTEM, {"metadata": {"name": "basic-auth"}, "stringData": LOGIN})


def test_a_release_is_installed_upgraded_rolled_back_and_removed_and_functions_stay(bare: Cluster, kubectl: Kubectl) -> None:
    [[_, *before], [_, *install]] = commands("install-on-kubernetes.md", "helm upgrade")
    kubectl(*before)
    helm(bare.kubeconfig, *install)
    first, whole = set(chart()), set(chart(*NEWER))
    assert set(released(bare)) == there(kubectl, first) == first
    assert gateway(bare).containers[0].image == "registry.example/gnomon-gateway:0.1.0"
    function(bare)
    [lease] = [name for name in first if name[0] == "Lease"]
    kubectl("patch", "lease", lease[2], "-n", SYSTEM, "--type=merge", "-p", '{"spec":{"holderIdentity":"one"}}')

    # The same command with other values is an upgrade: what is new comes, what is no longer wanted goes.
    helm(bare.kubeconfig, *install, *settings(*NEWER))
    assert set(released(bare)) == whole == there(kubectl, first | whole)
    assert first - whole, "something of the first release is to go"
    assert bare.apps.read_namespaced_deployment("gateway", SYSTEM).spec.replicas == 3
    assert "--cluster-wide" in gateway(bare).containers[0].args
    assert history(bare) == ["superseded", "deployed"]

    helm(bare.kubeconfig, "rollback", RELEASE, "1", "--namespace", SYSTEM)
    assert there(kubectl, first | whole) == first
    assert "--cluster-wide" not in gateway(bare).containers[0].args
    held = kubectl("get", "lease", lease[2], "-n", SYSTEM, "-o", "jsonpath={.spec.holderIdentity}")
    assert held == "one", "who leads goes on"

    [uninstall] = [words for words in commands("install-on-kubernetes.md", "helm uninstall") if words[0] == "helm"]
    helm(bare.kubeconfig, *uninstall[1:])
    kept = {name for name in first if name[0] == "Namespace"}
    until(lambda: there(kubectl, first) == kept, "all but both namespaces to go")
    assert len(kept) == 2
    users_own(bare)

    # Whoever installs it again has the same functions and the same login.
    helm(bare.kubeconfig, *install)
    assert there(kubectl, first) == first
    users_own(bare)


def gateway(bare: Cluster) -> Any:
    return bare.apps.read_namespaced_deployment("gateway", SYSTEM).spec.template.spec


def history(bare: Cluster) -> list[str]:
    said = json.loads(helm(bare.kubeconfig, "history", RELEASE, "--namespace", SYSTEM, "-o", "json"))
    return [row["status"] for row in said]


def users_own(bare: Cluster) -> None:
    """Is there."""
    assert bare.apps.read_namespaced_deployment("echo", FUNCTIONS).metadata.deletion_timestamp is None
    assert set(bare.core.read_namespaced_secret("basic-auth", SYSTEM).data) == set(LOGIN)


def test_the_chart_is_as_helm_wants_charts_to_be() -> None:
    assert "0 chart(s) failed" in helm(Path(os.devnull), "lint", "--strict", str(CHART), "--kube-version", "1.35.0")


@pytest.mark.parametrize("how_to", ["install-on-kubernetes", "models-on-kubernetes", "run-on-knative", "adopt-in-openfaas"])
def test_the_releases_namespace_is_made_before_it(how_to: str) -> None:
    """By --create-namespace it comes too late to be taken over, and the installation fails on an empty cluster."""
    text = (HOW_TO / f"{how_to}.md").read_text()
    made = (
        r"kubectl create namespace (\S+)[^\n]*?(?:\n *|&& )helm upgrade --install gnomon \S+ --namespace (\S+) --take-ownership"
    )
    installs = re.findall(made, text)
    assert len(installs) == text.count("helm upgrade --install gnomon") > 0
    assert all(first == second for first, second in installs)
