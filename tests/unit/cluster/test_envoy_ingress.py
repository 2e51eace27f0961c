"""The configuration that the tests' ingress writes for Envoy."""

from __future__ import annotations

from typing import Any

from tests.cluster import envoy

NAMES = {"Knative-Serving-Revision": "f-00001", "Knative-Serving-Namespace": "users"}


def ingress(*paths: dict[str, Any], hosts: tuple[str, ...] = ("f.users.example.com",)) -> dict[str, Any]:
    rules = [{"hosts": list(hosts), "visibility": "ExternalIP", "http": {"paths": list(paths)}}]
    return {"metadata": {"name": "f", "namespace": "users", "generation": 1}, "spec": {"rules": rules}}


def split(name: str = "f-00001", percent: int = 100) -> dict[str, Any]:
    where = {"serviceNamespace": "users", "serviceName": name, "servicePort": 80}
    return {**where, "percent": percent, "appendHeaders": {**NAMES, "Knative-Serving-Revision": name}}


def virtual_hosts(*ingresses: dict[str, Any]) -> list[dict[str, Any]]:
    [resource] = envoy.routes(ingresses)["resources"]
    hosts: list[dict[str, Any]] = resource["virtual_hosts"]
    return hosts


def test_a_split_carries_its_revisions_name_and_its_share() -> None:
    [host] = virtual_hosts(ingress({"splits": [split(percent=90), split("f-00002", 10)]}))
    clusters = host["routes"][-1]["route"]["weighted_clusters"]["clusters"]
    assert [(cluster["name"], cluster["weight"]) for cluster in clusters] == [("users.f-00001.80", 90), ("users.f-00002.80", 10)]
    headers = {row["header"]["key"]: row["header"]["value"] for row in clusters[1]["request_headers_to_add"]}
    assert headers == {**NAMES, "Knative-Serving-Revision": "f-00002"}


def test_a_probe_gets_the_hash_of_the_ingress_and_comes_before_its_path() -> None:
    made = ingress({"splits": [split()]})
    probed, plain = virtual_hosts(made)[0]["routes"]
    assert [header["name"] for header in probed["match"]["headers"]] == ["K-Network-Hash"]
    added = probed["route"]["weighted_clusters"]["clusters"][0]["request_headers_to_add"]
    assert ("K-Network-Hash", envoy.hash_of(made)) in [(row["header"]["key"], row["header"]["value"]) for row in added]
    assert plain["match"]["headers"] == []


def test_longer_paths_and_those_with_headers_come_first() -> None:
    tag = {"headers": {"Knative-Serving-Tag": {"exact": "blue"}}}
    hosts = virtual_hosts(ingress({"splits": [split()]}, {"splits": [split()], **tag}, {"splits": [split()], "path": "/v1"}))
    plain = [route["match"] for route in hosts[0]["routes"][1::2]]
    assert [(row["prefix"], len(row["headers"])) for row in plain] == [("/v1", 0), ("/", 1), ("/", 0)]


def test_a_host_that_two_have_is_the_firsts() -> None:
    """Envoy would refuse all routes."""
    twice = virtual_hosts(
        ingress({"splits": [split()]}), ingress({"splits": [split("g-00001")]}, hosts=("f.users.example.com", "g"))
    )
    assert [row["domains"] for row in twice] == [["f.users.example.com", "f.users.example.com:*"], ["g", "g:*"]]


def test_endpoints_are_the_ready_addresses_at_the_named_port() -> None:
    addresses = [("10.0.0.2", True), ("10.0.0.1", True), ("10.0.0.3", False)]
    slices = [
        {
            "ports": [{"name": "http", "port": 8012}, {"name": "https", "port": 8112}],
            "endpoints": [{"addresses": [ip], "conditions": {"ready": ready}} for ip, ready in addresses],
        }
    ]
    [resource] = envoy.endpoints("users.f-00001.80", slices, "http")["resources"]
    places = [lb_endpoint["endpoint"]["address"]["socket_address"] for lb_endpoint in resource["endpoints"][0]["lb_endpoints"]]
    assert places == [{"address": "10.0.0.1", "port_value": 8012}, {"address": "10.0.0.2", "port_value": 8012}]
