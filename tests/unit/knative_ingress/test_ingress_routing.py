"""Who serves what: tables, backends, the gateway for those that batch."""

from __future__ import annotations

from dataclasses import replace

from gnomon_platforms.knative.ingress.backends import (
    Endpoint,
    Gateway,
    GatewayPlace,
    ServiceFacts,
    ServicePort,
    SliceFacts,
    StillView,
    backend,
    gateway_of,
    service_facts,
    slice_facts,
)
from gnomon_platforms.knative.ingress.judging import ENDPOINTS_GRACE_S, Case, judge
from gnomon_platforms.knative.ingress.maps import Names
from gnomon_platforms.knative.ingress.model import Ingress, seen_ingress
from gnomon_platforms.knative.ingress.programming import Places
from gnomon_platforms.knative.ingress.routing import routing
from tests.knative_ingresses import document, made, path, rule, split

KEY = ("default", "s")
SERVICE = ServiceFacts(KEY, (ServicePort("http", 80, h2c=False),), cluster_ip="10.96.0.7")
SLICE = SliceFacts(KEY, (("http", 8012), ("other", 1)), ("10.0.0.1", "10.0.0.2"))
VIEW = StillView({KEY: SERVICE}, (SLICE,))


def one(name: str = "one", host: str = "a.b", **headers: str) -> Ingress:
    return made(name, rule(host, path(split("s", **headers))))


def test_a_backend_is_the_ready_endpoints_at_the_port_by_name() -> None:
    document = {
        "metadata": {"namespace": "default", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8012}],
        "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": True}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": False, "serving": True}},
            {"addresses": ["10.0.0.3"]},
        ],
    }
    (each,) = one().rules[0].paths[0].splits
    found = backend(each, replace(VIEW, endpoint_slices=(slice_facts(document),)))
    assert not isinstance(found, str)
    assert found.endpoints == (Endpoint("10.0.0.1", 8012), Endpoint("10.0.0.3", 8012))


def test_where_none_is_ready_those_that_are_ending_serve() -> None:
    ending = {"addresses": ["10.0.0.2"], "conditions": {"ready": False, "serving": True, "terminating": True}}
    unwell = {"addresses": ["10.0.0.3"], "conditions": {"ready": False, "serving": False, "terminating": False}}
    document = {
        "metadata": {"namespace": "default", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8012}],
        "endpoints": [ending, unwell],
    }
    (each,) = one().rules[0].paths[0].splits
    found = backend(each, replace(VIEW, endpoint_slices=(slice_facts(document),)))
    assert not isinstance(found, str)
    assert found.endpoints == (Endpoint("10.0.0.2", 8012),)
    found = backend(each, replace(VIEW, endpoint_slices=(slice_facts(document), SLICE)))
    assert not isinstance(found, str)
    assert [one.ip for one in found.endpoints] == ["10.0.0.1", "10.0.0.2"]


def test_the_protocol_is_what_the_port_says() -> None:
    ports = [
        {"name": "http", "port": 80},
        {"name": "http2", "port": 81},
        {"name": "x", "port": 82, "appProtocol": "kubernetes.io/h2c"},
        {"name": "http2", "port": 83, "appProtocol": "http"},
        {"name": "udp", "port": 84, "protocol": "UDP"},
    ]
    facts = service_facts({"metadata": {"namespace": "default", "name": "s"}, "spec": {"ports": ports}})
    assert [(each.port, each.h2c) for each in facts.ports] == [(80, False), (81, True), (82, True), (83, False)]


def test_another_name_of_a_service_leads_to_its_address_and_never_to_the_node() -> None:
    (each,) = one().rules[0].paths[0].splits
    other = ServiceFacts(("system", "ingress"), (), cluster_ip="10.96.0.9")
    known = {other.key: other}

    def of(name: str) -> object:
        return backend(each, StillView({**known, KEY: ServiceFacts(KEY, (), external_name=name)}))

    found = of("ingress.system.svc.cluster.local")
    assert getattr(found, "endpoints", None) == (Endpoint("10.96.0.9", 80),)
    for refused in ("missing.system.svc.cluster.local", "example.com", "127.0.0.1", "169.254.169.254", "::1", "0.0.0.0"):
        assert isinstance(of(refused), str)


def test_a_revision_that_batches_is_led_to_the_gateway_only_where_there_is_one() -> None:
    headers = {"Knative_Serving_Revision": "s", "Knative_Serving_Namespace": "default"}
    gateway = Gateway((Endpoint("10.96.0.5", 8080),))
    view = replace(VIEW, revisions={("default", "s"): {"gnomon/scheduler": "adaptive"}})
    ends = {
        name: next(iter(routing([one(**given)], seen).backends.values())).endpoints
        for name, given, seen in (
            ("gateway", headers, replace(view, gateway=gateway)),
            ("no gateway", headers, view),
            ("nobody is named", {}, replace(view, gateway=gateway)),
            ("another is named", {**headers, "Knative_Serving_Revision": "s-2"}, replace(view, gateway=gateway)),
            ("it does not batch", headers, replace(view, gateway=gateway, revisions={("default", "s"): {}})),
        )
    }
    straight = (Endpoint("10.0.0.1", 8012), Endpoint("10.0.0.2", 8012))
    assert ends.pop("gateway") == (Endpoint("10.96.0.5", 8080),)
    assert set(ends.values()) == {straight}
    assert len(ends) == 4


def test_the_gateway_is_whoever_is_ready_behind_its_service_and_none_leaves_requests_on_their_ordinary_way() -> None:
    service = ServiceFacts(("system", "gateway"), (ServicePort("http", 80, h2c=False), ServicePort("page", 9090, h2c=False)))
    ports = (("http", 8080), ("page", 9090))
    place = GatewayPlace(service=service.key, port=80)
    for slices, ready in (
        ((), ()),
        ((SliceFacts(service.key, ports, ("10.0.9.1", "10.0.9.2")),), ("10.0.9.1", "10.0.9.2")),
        ((SliceFacts(service.key, ports, (), ending=("10.0.9.1",)),), ()),
    ):
        view = StillView({service.key: service}, slices)
        assert gateway_of(place, view) == Gateway(tuple(Endpoint(ip, 8080) for ip in ready))
    assert gateway_of(place, StillView()) == Gateway()
    assert gateway_of(GatewayPlace(service=service.key, port=81), view) == Gateway()
    assert gateway_of(GatewayPlace(Endpoint("10.96.0.5", 80)), StillView()) == Gateway((Endpoint("10.96.0.5", 80),))


def test_the_older_of_two_has_the_host() -> None:
    older = replace(one("b"), created="2025-01-01T00:00:00Z")
    found = routing([one("a"), older], VIEW)
    assert found.external["a.b"].hash == older.hash
    assert found.losers == {("default", "a"): "a.b"}


def test_a_table_is_known_by_what_is_in_it() -> None:
    first, second = (routing([one(Which=value)], VIEW).external["a.b"] for value in ("x", "y"))
    assert first.id != second.id
    assert first == routing([one(Which="x")], VIEW).external["a.b"]


def test_what_waits_for_a_service_is_served_as_before_and_endpoints_are_waited_for_only_a_moment() -> None:
    case = Case("uid-one")
    seen = seen_ingress(document("one", rule("a.b", path(split("s")))))
    judge(case, seen, VIEW, 0.0)
    before = case.served
    assert before == seen.ingress
    rolled = seen_ingress(document("one", rule("a.b", path(split("new")))))
    judge(case, rolled, VIEW, 1.0)
    assert (case.served, case.trouble and case.trouble.reason) == (before, "BackendMissing")
    new = ("default", "new")
    empty = replace(VIEW, services={KEY: SERVICE, new: ServiceFacts(new, SERVICE.ports)})
    judge(case, rolled, empty, 2.0)
    assert (case.served, case.trouble and case.trouble.reason) == (before, "EndpointsMissing")
    judge(case, rolled, empty, 1.0 + ENDPOINTS_GRACE_S)
    assert (case.served, case.trouble) == (rolled.ingress, None)
    judge(case, replace(rolled, ingress=None, problem="spec.rules: there is none."), empty, 9.0)
    assert (case.served, case.trouble and case.trouble.waits) == (rolled.ingress, False)


def test_a_key_keeps_its_backend_while_somebody_may_be_led_there() -> None:
    places = Places(count=2)
    assert not places.assign(["a", "b"])
    first = dict(places.taken)
    places.keep(["a"], [])
    assert not places.assign(["a", "c"])
    assert places.taken == {"a": first["a"], "c": first["b"]}
    assert places.assign(["a", "c", "d"])
    assert places.count == 4
    assert len(set(places.taken.values())) == 3
    assert Names(headers=("a",)) | Names(headers=("b", "a")) == Names(headers=("a", "b"))
