"""What the platform says that it can do follows from what the API server offers."""

from __future__ import annotations

from typing import Any

import pytest

from gnomon_platforms.kubernetes.resources import resizes_pods
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_platforms.testing import Recorder
from tests.integration.kubernetes_platform.scripted import Answer, Script, refusal, serving

NOTHING: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "items": []}


@pytest.mark.parametrize("offered", ["pods/resize", "pods/status"])
async def test_sizes_are_offered_where_pods_can_be_resized(offered: str) -> None:
    answer, sizes = Answer({**NOTHING, "resources": [{"name": "pods"}, {"name": offered}]}), offered == "pods/resize"
    with serving(Script([answer])) as api:
        platform = OpenFaasPlatform(api)
        await platform.start(Recorder())
        can = platform.capabilities
        await platform.stop()
    assert (can.size, can.resize, can.place) == (sizes, sizes, True)


def test_a_server_that_does_not_say_what_it_offers_is_believed_to() -> None:
    with serving(Script([refusal(403, "Forbidden")])) as api:
        assert resizes_pods(api)
