"""What the operator may say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.__main__ import options, parser
from gnomon_platforms.knative.ingress.backends import Endpoint, GatewayPlace
from gnomon_platforms.knative.ingress.config import Binds, Shape
from gnomon_platforms.knative.ingress.maps import Names

ROOT = Path(__file__).parents[3]


def test_the_services_names_are_those_of_the_cluster() -> None:
    asked = options(parser().parse_args(["--namespace=system", "--domain=here.local", "--gateway=[fd00::1]:8080", "--peers=all"]))
    assert asked.controller.addresses.public == "gnomon-ingress.system.svc.here.local"
    assert asked.controller.addresses.private == "gnomon-ingress-local.system.svc.here.local"
    assert asked.controller.seeing.gateway == GatewayPlace(Endpoint("fd00::1", 8080))
    assert asked.controller.peers == ("system", "all")
    assert asked.lease_namespace == "system"
    assert options(parser().parse_args(["--alone"])).lease_namespace is None


def test_the_gateway_is_named_by_its_service_or_its_address() -> None:
    def place(text: str) -> GatewayPlace | None:
        return options(parser().parse_args(["--namespace=system", f"--gateway={text}"])).controller.seeing.gateway

    assert place("gateway:80") == GatewayPlace(service=("system", "gateway"), port=80)
    assert place("gateway.elsewhere:80") == GatewayPlace(service=("elsewhere", "gateway"), port=80)
    assert place("gateway.elsewhere.svc.cluster.local:80") == GatewayPlace(service=("elsewhere", "gateway"), port=80)
    assert place("10.0.0.1:80") == GatewayPlace(Endpoint("10.0.0.1", 80))
    assert place("") is None
    for refused in ("gateway", "gateway:http", ":80"):
        with pytest.raises(GnomonError, match="has no port"):
            place(refused)


@pytest.mark.parametrize("bind", ["*:80\n  bind *:81", "*:80 ssl", "unix@/a b", "80", ""])
def test_an_address_that_is_none_is_refused(bind: str) -> None:
    with pytest.raises(GnomonError, match="no address to listen at"):
        Binds(http=bind)


def test_a_folder_that_haproxy_would_read_otherwise_is_refused() -> None:
    with pytest.raises(GnomonError, match="characters"):
        Shape(Path("/run/a b"), Names(), 1)


def test_what_haproxy_may_hold_fits_into_the_memory_of_its_pod() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/knative/ingress/ingress.yaml").read_text())
    (pod,) = (each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment")
    (container,) = pod["containers"]
    memory = container["resources"]["limits"]["memory"]
    connections = options(parser().parse_args([])).proxy.limits.descriptors / 2
    # A connection's 87 kB, in a worker and in one that was replaced, and 100 MB of ours.
    assert memory.endswith("Gi")
    assert 2 * connections * 87e3 + 100e6 < int(memory.removesuffix("Gi")) * 2**30


def test_so_few_descriptors_that_haproxy_could_not_work_or_would_take_all_are_refused() -> None:
    assert options(parser().parse_args(["--descriptors=50000"])).proxy.limits.descriptors == 50_000
    for refused in ("0", "-1", "999"):
        with pytest.raises(GnomonError, match="too few"):
            options(parser().parse_args([f"--descriptors={refused}"]))
