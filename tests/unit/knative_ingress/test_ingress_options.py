"""What the operator may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.__main__ import options, parser
from gnomon_platforms.knative.ingress.backends import Endpoint
from gnomon_platforms.knative.ingress.config import Binds, Shape
from gnomon_platforms.knative.ingress.maps import Names


def test_the_services_names_are_those_of_the_cluster() -> None:
    asked = options(parser().parse_args(["--namespace=system", "--domain=here.local", "--gateway=[fd00::1]:8080", "--peers=all"]))
    assert asked.controller.addresses.public == "gnomon-ingress.system.svc.here.local"
    assert asked.controller.addresses.private == "gnomon-ingress-local.system.svc.here.local"
    assert asked.controller.seeing.gateway.endpoint == Endpoint("fd00::1", 8080)
    assert asked.controller.peers == ("system", "all")
    assert asked.lease_namespace == "system"
    assert options(parser().parse_args(["--alone"])).lease_namespace is None


@pytest.mark.parametrize("bind", ["*:80\n  bind *:81", "*:80 ssl", "unix@/a b", "80", ""])
def test_an_address_that_is_none_is_refused(bind: str) -> None:
    with pytest.raises(GnomonError, match="no address to listen at"):
        Binds(http=bind)


def test_a_folder_that_haproxy_would_read_otherwise_is_refused() -> None:
    with pytest.raises(GnomonError, match="characters"):
        Shape(Path("/run/a b"), Names(), 1)
