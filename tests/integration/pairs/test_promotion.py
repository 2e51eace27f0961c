"""A real Shadow that becomes a Body, played step by step: what it answers meanwhile, and what it is afterwards."""

import os
import socket
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from gnomon_core import packets
from gnomon_core.launch import Launch, Order
from tests.integration.pairs.conftest import HALVES
from tests.pair_harness import FUNCTION, MAX_BATCH, Child, Model, Nursery, Task, join, load

pytestmark = pytest.mark.torch
NAME = "resnet18"


def promote(shadow: Child, model: Model, mode: str) -> None:
    """Ask for it, with a channel whose other end the child has from then on."""
    ours, theirs = socket.socketpair()
    launch = Launch("model", FUNCTION, shadow.id, max_batch=MAX_BATCH, options={**model.options(), "weight_mode": mode})
    order = packets.sealed_file("order", Order(launch, model.sandbox()).to_json().encode())
    with theirs:
        shadow.order("promote", [order, theirs.fileno()], {"shadow": shadow.id})
    os.close(order)
    shadow.channel.close()
    shadow.channel = ours


def pair(nursery: Nursery, model: Model, blocks: Sequence[int], mode: str) -> tuple[Child, Child]:
    body, shadow = nursery.body(model, weight_mode=mode), nursery.empty()
    # A Body that expects ten seconds waits for its Shadow on a busy machine too.
    task = Task(model, blocks, HALVES, [[10_000.0] * MAX_BATCH for _ in model.layers.runs(blocks)])
    assert load(shadow, task, mode=mode)["say"] == "registered"
    join(body, shadow, task)
    return body, shadow


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_promoted_shadow_works_in_the_pair_until_it_serves(
    nursery: Nursery, models: Callable[[str], Model], expected: Callable[[Model, Tensor], Tensor], mode: str
) -> None:
    model = models(NAME)
    blocks = tuple(range(len(model.layers.blocks) // 2))
    body, shadow = pair(nursery, model, blocks, mode)
    x = torch.randn(4, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    right = expected(model, x)
    promote(shadow, model, mode)
    answers = [body.ask(x) for _ in range(3)]
    said = shadow.say("complete", "failed")
    assert said["say"] == "complete", said
    assert said["resident_bytes"] >= model.layers.parameter_bytes()
    answers.append(body.ask(x))
    for rows, hand_overs in answers:
        assert torch.allclose(rows.view(right.shape), right, atol=1e-5)
        assert [hand_over["outcome"] for hand_over in hand_overs] == ["answered"]
    body.order("unpair", (), {"shadow": shadow.id})
    assert body.say("unpaired")["shadow"] == shadow.id
    shadow.order("serve", (), {"shadow": shadow.id})
    hello = shadow.frame().head_json()
    assert (hello["kind"], hello["weight_mode"], hello["pid"]) == ("model", mode, shadow.pid)
    shadow.input_name = model.signature.inputs[0].name
    shadow.order("hello", (), epoch=2)
    assert shadow.say("body")["pairs"] == []
    for child in (shadow, body):
        rows, hand_overs = child.ask(x)
        assert torch.allclose(rows.view(right.shape), right, atol=1e-5)
        assert hand_overs == []
    body.end()
    shadow.end()


def test_asked_again_by_another_coordinator_it_says_again_what_it_has(nursery: Nursery, models: Callable[[str], Model]) -> None:
    model = models(NAME)
    body, shadow = pair(nursery, model, (0,), "private")
    promote(shadow, model, "private")
    first = shadow.say("complete")
    promote(shadow, model, "private")
    assert shadow.say("complete") == first
    shadow.order("hello", (), epoch=5)
    again = shadow.say("registered")
    assert (again["blocks"], again["paired"]) == ([0], True)
    shadow.order("stop", (), epoch=5)
    nursery.gone(shadow.id)
    body.end()


def test_orders_that_make_no_sense_are_refused_and_the_pair_goes_on(nursery: Nursery, models: Callable[[str], Model]) -> None:
    model = models(NAME)
    body, shadow = pair(nursery, model, (0,), "shared")
    shadow.order("serve", (), {"shadow": shadow.id})
    assert "does not hold the whole model" in shadow.say("failed")["reason"]
    shadow.order("promote", (), {"shadow": shadow.id})
    assert "0 descriptors" in shadow.say("failed")["reason"]
    promote(shadow, model, "shared")
    shadow.say("complete")
    shadow.order("change", (), {"blocks": [0, 1], "split": list(HALVES)})
    assert "being promoted to a Body" in shadow.say("failed")["reason"]
    x = torch.randn(2, 3, 48, 48)
    assert [row["outcome"] for row in body.ask(x)[1]] == ["answered"]
    # Its Body ends: it waits for what comes, and serves when it is told to.
    body.end()
    shadow.say("unpaired")
    shadow.order("serve", (), {"shadow": shadow.id})
    assert shadow.frame().head_json()["kind"] == "model"
    shadow.channel.close()
    assert nursery.gone(shadow.id)["status"] == 0


def test_an_empty_container_cannot_be_promoted(nursery: Nursery, models: Callable[[str], Model]) -> None:
    shadow = nursery.empty()
    promote(shadow, models(NAME), "shared")
    assert "loaded no blocks" in shadow.say("failed")["reason"]
    assert nursery.gone(shadow.id)["status"] != 0
