"""Conformance tests restore the parts of Knative's configuration that they change."""

from __future__ import annotations

import pytest

from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl
from tests.cluster.knative import configured
from tests.cluster.phases import Trouble


def test_values_are_changed_and_changed_back_even_where_one_cannot_be(own_plane: Cluster, compiled: build.Programs) -> None:
    system = "knative-serving"
    own_plane.core.create_namespace({"metadata": {"name": system}})
    data = {"mesh-compatibility-mode": "disabled", "ingress-class": "theirs"}
    own_plane.core.create_namespaced_config_map(system, {"metadata": {"name": "config-network"}, "data": data})
    own_plane.core.create_namespaced_config_map(system, {"metadata": {"name": "config-domain"}})
    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)

    def now(name: str) -> dict[str, str]:
        return own_plane.core.read_namespaced_config_map(name, system).data or {}

    wanted = {"config-network": {"ingress-class": "gnomon"}, "config-domain": {"example.com": ""}}
    with configured(kubectl, wanted):
        assert now("config-network") == {**data, "ingress-class": "gnomon"}
        assert now("config-domain") == {"example.com": ""}
    assert (now("config-network"), now("config-domain")) == (data, {})

    with pytest.raises(Trouble, match="config-missing"), configured(kubectl, {**wanted, "config-missing": {"a": "b"}}):
        pass
    assert (now("config-network"), now("config-domain")) == (data, {})
