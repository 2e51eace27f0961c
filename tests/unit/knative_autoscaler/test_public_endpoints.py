"""The EndpointSlices of a Revision's public Service."""

from __future__ import annotations

from typing import Any

import pytest

from gnomon_platforms.knative.autoscaler.objects import buffered, live_revision, pa_facts
from gnomon_platforms.knative.autoscaler.public_endpoints import (
    Addresses,
    knative_endpoints,
    own_slice,
    public_addresses,
    slices,
)
from tests.unit.knative_autoscaler.played import pod, pod_autoscaler

POD, ACTIVATOR, GATEWAY = "10.244.0.5", "10.244.0.2", "10.244.0.9"
PORTS = (("http", 8012), ("https", 8112))


def endpoints(*ready: str, waiting: tuple[str, ...] = (), **labels: str) -> dict[str, Any]:
    """Endpoints as Knative writes them."""
    subset = {
        "addresses": [{"ip": ip} for ip in ready],
        "notReadyAddresses": [{"ip": ip} for ip in waiting],
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in PORTS],
    }
    return {"metadata": {"name": "f-00001", "namespace": "users", "labels": labels}, "subsets": [subset]}


def test_gateways_that_are_ready_are_the_only_endpoints() -> None:
    knative = knative_endpoints(endpoints(POD))
    pods = [
        pod("a", ip=GATEWAY, ready=True),
        pod("b", ip="10.244.0.10", ready=False),
        pod("c", ip="10.244.0.11", ready=True, ending=True),
        pod("d", ip="", ready=True),
    ]
    assert public_addresses(pods, knative) == Addresses((GATEWAY,), (("http", 8012),))


@pytest.mark.parametrize("there", [(POD,), (ACTIVATOR, "10.244.0.3")])
def test_without_a_gateway_the_endpoints_are_knatives(there: tuple[str, ...]) -> None:
    knative = knative_endpoints(endpoints(*there, waiting=("10.244.0.77",)))
    assert public_addresses([pod("a", ip=GATEWAY, ready=False)], knative) == Addresses(tuple(sorted(there)), PORTS)


def test_endpoints_of_nobody_have_no_addresses() -> None:
    document = endpoints(waiting=(POD,))
    assert knative_endpoints(document).addresses == Addresses((), ())
    assert knative_endpoints({**document, "subsets": None}).addresses == Addresses((), ())


def test_endpoints_are_mirrored_until_their_label_says_otherwise() -> None:
    assert knative_endpoints(endpoints(POD)).mirrored
    assert not knative_endpoints(endpoints(POD, **{"endpointslice.kubernetes.io/skip-mirror": "true"})).mirrored


def test_a_slice_belongs_to_the_service_and_goes_with_the_revision() -> None:
    pa = pa_facts(pod_autoscaler())
    wanted = Addresses((GATEWAY, "fd00::9"), (("http", 8012),))
    made = slices(pa, wanted)
    assert {name: row["addressType"] for name, row in made.items()} == {
        "f-00001-gnomon-ipv4": "IPv4",
        "f-00001-gnomon-ipv6": "IPv6",
    }
    for row in made.values():
        labels = row["metadata"]["labels"]
        assert labels["kubernetes.io/service-name"] == "f-00001"
        assert pa.labels.items() <= labels.items()
        [owner] = row["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("PodAutoscaler", pa.uid, True)
        assert row["endpoints"][0]["conditions"]["ready"] is True
    read = [own_slice(document) for document in made.values()]
    assert [endpoint_slice.service for endpoint_slice in read] == ["f-00001", "f-00001"]
    assert sorted(ip for endpoint_slice in read for ip in endpoint_slice.addresses.ips) == sorted(wanted.ips)


@pytest.mark.parametrize(
    ("annotations", "port", "batches"),
    [
        ({"gnomon/max-batch": "8"}, {}, True),
        ({"gnomon/scheduler": "fixed"}, {}, True),
        ({}, {}, False),
        ({"gnomon/max-batch": "8"}, {"name": "h2c"}, False),
        ({"gnomon/max-batch": "8", "autoscaling.knative.dev/class": "kpa.autoscaling.knative.dev"}, {}, False),
    ],
)
def test_a_revision_batches_that_asks_for_it_in_our_class_by_http_1(
    annotations: dict[str, str], port: dict[str, str], *, batches: bool
) -> None:
    named = {"name": "f-00001", "namespace": "users", "annotations": {"autoscaling.knative.dev/class": "gnomon", **annotations}}
    container = {"image": "x", "ports": [{"containerPort": 8080, **port}]}
    document = {"metadata": named, "spec": {"containers": [container]}}
    assert buffered(document) is batches
    assert live_revision(document).batches is batches
