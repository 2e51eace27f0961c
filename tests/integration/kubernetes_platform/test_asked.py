"""What is counted of requests to an API server."""

from __future__ import annotations

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.client import Refused, Unreachable, resource_of
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NAMESPACES, NODES, PODS
from tests.integration.kubernetes_platform.scripted import Script, listed, refusal, serving


def test_each_request_is_counted_by_how_it_ended() -> None:
    def fence() -> None:
        raise GnomonError(503, "not_leading", "Another process leads.", "Ask that one.")

    resize = PODS.path("fn", "resnet-1", "resize")
    with serving(Script([listed("1")], writes=[refusal(409, "Conflict")])) as api:
        api.call("GET", PODS.path("fn"))
        api.call("GET", PODS.path("fn"))
        with pytest.raises(Refused):
            api.call("PATCH", resize, body={})
        with pytest.raises(GnomonError, match="Another process"):
            api.call("PATCH", resize, body={}, fence=fence)
        assert api.asked.silence_s < 60.0
    with pytest.raises(Unreachable):
        api.call("GET", NODES.path())
    assert api.asked.counts == {
        ("GET", "pods", "200"): 2,
        ("PATCH", "pods/resize", "409"): 1,
        ("PATCH", "pods/resize", "fenced"): 1,
        ("GET", "nodes", "unanswered"): 1,
    }


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        (DEPLOYMENTS.path("fn", "resnet", "scale"), "deployments/scale"),
        (DEPLOYMENTS.path("fn", "resnet"), "deployments"),
        (DEPLOYMENTS.path(), "deployments"),
        (PODS.path("fn", "x", "status"), "pods/status"),
        (NAMESPACES.path(name="fn"), "namespaces"),
        (NODES.path(name="n1"), "nodes"),
    ],
)
def test_paths_name_what_they_are_about_and_not_whose_it_is(path: str, resource: str) -> None:
    assert resource_of(path) == resource
