"""A function whose policy makes Shadows, on a cluster where no node can make any: it is served, and its users are told.

The API server is played: it keeps Events, and nothing else happens in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.interfaces import LogQuery
from gnomon_gateway.functions.validation import ShadowNotice
from gnomon_platforms.kubernetes.client import Api
from tests.integration.coordinator_node.test_leaders import Held
from tests.integration.coordinator_node.test_profiles_of_replicas import SPEC, Replica, measure, models
from tests.integration.kubernetes_platform.scripted import Answer, Asked, refusal, serving
from tests.waiting import until

__all__ = ["models"]
pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


class Keeping(Held):
    """An API that keeps Events."""

    def __init__(self) -> None:
        super().__init__("uid-keeping")
        self.events: dict[str, Any] = {}

    def next(self, request: Asked) -> Any:
        if "/events" not in request.path:
            return super().next(request)
        if request.method == "POST":
            self.events[request.body["metadata"]["name"]] = request.body
            return Answer(request.body, 201)
        kept = self.events.get(request.path.rsplit("/", 1)[-1])
        return refusal(404, "NotFound") if kept is None else Answer(kept)


@pytest.fixture
def server() -> Keeping:
    return Keeping()


@pytest.fixture
def api(server: Keeping) -> Iterator[Api]:
    with serving(server) as made:
        yield made


async def test_model_without_coordinator_is_served_by_bodies_alone(
    api: Api, server: Keeping, models: Path, tmp_path: Path
) -> None:
    measure(models)
    gateway = Replica(api, models, tmp_path, leads=True)
    await gateway.start()
    assert gateway.manager.directory.lookup("line") is not None, "it is served"
    await until(lambda: bool(server.events), "nothing is said on its Deployment")
    [event] = server.events.values()
    assert (event["reason"], event["message"], event["involvedObject"]["uid"]) == (
        ShadowNotice.REASON,
        ShadowNotice.TEXT,
        "uid-line",
    )
    assert [line.text for line in gateway.logs.lines(LogQuery(SPEC.key))] == [f"gnomon: {ShadowNotice.TEXT}"]
    detail = gateway.manager.detail(SPEC.key)
    assert detail is not None
    assert detail.notice == ShadowNotice.TEXT
    # A node's coordinator comes.
    gateway.platform._cluster.capacity.pool_ready("node-a", ready=True)
    detail = gateway.manager.detail(SPEC.key)
    assert detail is not None
    assert detail.notice == ""
    await gateway.stop()
