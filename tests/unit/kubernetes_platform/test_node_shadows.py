"""What a Shadow that a node tells of goes on as, by what its row says."""

from __future__ import annotations

from typing import Any

import pytest

from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.pairs import Pair
from gnomon_platforms.nodes.node_shadow import BodyPod, adopted_shadow, pair_of, requested_shadow, should_contain

BODY = BodyPod(
    Instance("b-1", "line.openfaas-fn", 3, "node-a", 4, 100, InstanceState.READY, 1.0),
    read_deployment({"service": "line", "image": "i"}),
    "uid-1",
    "node-a",
)
STATE = {"incarnation": "i", "version": 7}
ROW: dict[str, Any] = {
    "id": "s-1", "pod_uid": "uid-1", "state": "starting", "reason": "", "cores": 2, "paired": False, "blocks": [], "split": [],
    "wished": {"blocks": [0, 1], "split": [0, 1]}, "memory_bytes": 500,
}  # fmt: skip
WISHED = Pair(2, (0, 1), (0, 1))


def test_it_goes_on_as_what_was_wished_for_and_is_told_what_it_does_by_now() -> None:
    shadow = adopted_shadow(ROW, BODY, STATE, 20.0)
    assert shadow.instance == requested_shadow("s-1", BODY, WISHED, 500, 20.0).instance
    assert (shadow.instance.kind, shadow.instance.state) == (InstanceKind.SHADOW, InstanceState.STARTING)
    assert (shadow.instance.partner, shadow.instance.version, shadow.instance.node) == ("b-1", 3, "node-a")
    assert (shadow.pair, pair_of(ROW)) == (None, None)
    # On its way from one task to another: it was asked to compute less, and has not been told so by its Body.
    changing = {**ROW, "state": "ready", "paired": True, "blocks": [0, 1, 2], "split": [0, 1, 2]}
    assert adopted_shadow(changing, BODY, STATE, 20.0).instance.pair == WISHED
    assert pair_of(changing) == Pair(2, (0, 1, 2), (0, 1, 2))


@pytest.mark.parametrize(("told", "expected"), [({}, 0), ({"resident_bytes": 90}, 90)])
def test_a_coordinator_of_an_earlier_version_says_only_what_it_does(told: dict[str, int], expected: int) -> None:
    row = {key: value for key, value in ROW.items() if key not in ("wished", "memory_bytes")}
    row |= {"paired": True, "blocks": [0], "split": [0, 1], **told}
    shadow = adopted_shadow(row, BODY, STATE, 0.0)
    assert (shadow.instance.pair, shadow.instance.memory_bytes) == (Pair(2, (0,), (0, 1)), expected)


def test_the_state_that_told_of_it_and_every_later_one_should_know_it() -> None:
    shadow = adopted_shadow(ROW, BODY, STATE, 0.0)
    assert should_contain(STATE, shadow.known_since)
    assert should_contain({"incarnation": "i", "version": 8}, shadow.known_since)
    assert should_contain({"incarnation": "another", "version": 1}, shadow.known_since)
    assert not should_contain({"incarnation": "i", "version": 6}, shadow.known_since)
    assert not should_contain(STATE, requested_shadow("s-2", BODY, WISHED, 0, 0.0).known_since), "the node has not answered yet"
