"""What a coordinator tells instances, and the memory that it makes for a pair."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_core import packets, shared_memory
from gnomon_core.coordination import SHADOW_KIND
from gnomon_core.launch import Launch, Order, Sandbox
from gnomon_runtime.pair.testing.instances import Child
from gnomon_runtime.pair.testing.models import BODY, FUNCTION, MAX_BATCH, Task


@dataclass
class Buffers:
    """What the coordinator makes for a pair."""

    body: list[int]
    shadow: list[int]

    @staticmethod
    def make(there: int, back: int) -> Buffers:
        one, other = packets.socket_pair()
        to, back_again = shared_memory.make("to shadow", there), shared_memory.make("from shadow", back)
        return Buffers(
            [one.detach(), to, shared_memory.reader(back_again)], [other.detach(), shared_memory.reader(to), back_again]
        )

    def close(self) -> None:
        for descriptor in {*self.body, *self.shadow}:
            os.close(descriptor)


def load(
    child: Child,
    task: Task,
    *,
    mode: str = "shared",
    cores: int = 1,
    cpus: tuple[int, ...] = (),
    sandbox: Sandbox | None = None,
) -> dict[str, Any]:
    """Make a pool container a Shadow, and return what it says of that."""
    options: Mapping[str, Any] = {**task.model.options(), "body": BODY, "weight_mode": mode}
    launch = Launch(SHADOW_KIND, FUNCTION, child.id, cores=cores, max_batch=MAX_BATCH, options=options)
    order = packets.sealed_file("order", Order(launch, sandbox or task.model.sandbox(), cpus=cpus).to_json().encode())
    details: dict[str, Any] = {"shadow": child.id, "cores": cores, "cpus": list(cpus), **options}
    with child.log.open("ab") as log:
        child.order("load", [order, log.fileno()], details | {"blocks": list(task.blocks), "split": list(task.split)})
    os.close(order)
    return child.say("registered", "failed")


def join(body: Child, shadow: Child, task: Task, *, sizes: tuple[int, int] | None = None) -> None:
    """Make them a pair."""
    buffers = Buffers.make(*(sizes or shared_memory.hand_over_bytes(task.model.layers, MAX_BATCH)))
    try:
        shadow.order("join", buffers.shadow, {"shadow": shadow.id, "body": BODY, **_what(task)})
        shadow.expect("paired")
        tell_body(body, shadow.id, task, buffers)
    finally:
        buffers.close()


def tell_body(body: Child, shadow: str, task: Task, buffers: Buffers) -> None:
    """The Body's half of it."""
    expected_ms = [list(row) for row in task.expected_ms]
    body.order("pair", buffers.body, {"shadow": shadow, "shadow_cores": 1, "expected_ms": expected_ms, **_what(task)})
    body.expect("paired")


def change(body: Child, shadow: Child, old: Task, new: Task) -> None:
    """Give a pair other blocks as the coordinator does: the Shadow holds both until the Body means the new ones."""
    union = sorted({*old.blocks, *new.blocks})
    shadow.order("change", (), {"blocks": union, "split": list(new.split)})
    shadow.expect("changed")
    expected_ms = [list(row) for row in new.expected_ms]
    body.order("change", (), {"shadow": shadow.id, "expected_ms": expected_ms, **_what(new)})
    body.expect("changed")
    shadow.order("change", (), _what(new))
    shadow.expect("changed")


def _what(task: Task) -> dict[str, Any]:
    return {"blocks": list(task.blocks), "split": list(task.split)}
