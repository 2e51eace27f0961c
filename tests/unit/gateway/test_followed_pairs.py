"""A replica makes batches for a Body and its Shadows as the leader says what they do."""

from __future__ import annotations

import json

import pytest

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.pairs import Pair, together
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.replicas.state_sync import PairFollower, pairs_to_json
from gnomon_gateway.scheduling.basic import Immediate
from tests.unit.ownership.test_queue_changes_hands import OneInstance

ONE, TWO = Pair(2, (1, 2), (0, 1)), Pair(1, (1, 2), (0, 0), "node-b")


async def test_bodies_have_the_shadows_that_were_told_last() -> None:
    runtime = FunctionRuntime(FunctionKey("f"), Settings(), Immediate(), LearnedLatency())
    for name in ("i", "j"):
        runtime.instance_ready(Instance(name, runtime.name, 1, "here", 1, 0, InstanceState.READY, 0.0), OneInstance())
    followed = PairFollower({"i": runtime, "j": runtime}.get)

    def pair_of(body: str) -> Pair | None:
        return runtime.dispatcher.workers.by_id[body].pair

    for table in ({"i": [ONE, TWO], "unknown": [ONE]}, {"i": [ONE], "j": [TWO]}, {"j": [TWO]}, {}):
        followed.follow(json.loads(json.dumps(pairs_to_json(table))))
        for body in ("i", "j"):
            assert pair_of(body) == together(tuple(table.get(body, ())))
    runtime.close()


def test_what_is_no_table_changes_nothing() -> None:
    followed = PairFollower(lambda _: pytest.fail("nobody is to be asked"))
    for broken in ([], {"i": [{}]}, {"i": 1}, {"i": [{"cores": 1, "blocks": "x", "split": [], "node": None}]}):
        with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
            followed.follow(broken)  # type: ignore[arg-type]
