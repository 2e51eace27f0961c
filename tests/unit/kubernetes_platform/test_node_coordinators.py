"""A node's coordinator, read from its DaemonSet's pod."""

from typing import Any

import pytest

from gnomon_platforms.nodes.coordinators import CoordinatorPod, coordinator_pod, load_besides_shadows

LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "coordinator"}


def pod(ready: str = "True", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "coordinator-x", "uid": "u", **metadata},
        "spec": {
            "nodeName": "node-a",
            "containers": [
                {"name": "coordinator", "resources": {"requests": {"cpu": "20m"}}},
                {"name": "pool", "resources": {"requests": {"cpu": "2100m"}}},
            ],
        },
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
    }


def test_ready_coordinator_is_reached_at_its_address() -> None:
    assert coordinator_pod(pod()) == CoordinatorPod("coordinator-x", "u", "node-a", "10.0.0.1", 2.1)


def test_unready_or_terminating_coordinator_is_not_used() -> None:
    assert coordinator_pod(pod("False")).address is None
    assert coordinator_pod(pod(deletionTimestamp="2026-11-22T00:00:00Z")).address is None
    assert coordinator_pod({"metadata": {"name": "new"}}) == CoordinatorPod("new", "", "", None, 0.0)


def test_pool_requests_match_the_installation() -> None:
    """Its own request is what it was resized to."""
    said = pod(annotations={"gnomon/pool-cores": "500m"})
    assert coordinator_pod(said) == CoordinatorPod("coordinator-x", "u", "node-a", "10.0.0.1", 2.1, 0.5)
    for unreadable in ("", "half"):
        assert coordinator_pod(pod(annotations={"gnomon/pool-cores": unreadable})).base_cores == 0.1
    load = load_besides_shadows("gnomon-nodes")
    said["metadata"] |= {"namespace": "gnomon-nodes", "labels": LABELS}
    assert load(said).cores == pytest.approx(0.52)


def test_cores_of_shadows_are_counted_once() -> None:
    """They are claimed one by one; that the pool's pod asks for them as well is for the scheduler."""
    load = load_besides_shadows("gnomon-nodes")

    def of(namespace: str, labels: dict[str, str]) -> float:
        document = pod()
        document["metadata"] |= {"namespace": namespace, "labels": labels}
        return load(document).cores

    assert of("gnomon-nodes", LABELS) == pytest.approx(0.12)
    # Nobody else's pod is smaller than it says.
    assert of("elsewhere", LABELS) == pytest.approx(2.12)
    assert of("gnomon-nodes", {}) == pytest.approx(2.12)
