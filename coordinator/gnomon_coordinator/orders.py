"""The messages to instances, made from tasks. `gnomon_core.coordination` says what they mean."""

from __future__ import annotations

from typing import Any

from gnomon_coordinator.messages import Task
from gnomon_core.coordination import fitting


def load(task: Task) -> dict[str, Any]:
    """To a container: become this Shadow."""
    return {
        "do": "load",
        "shadow": task.shadow,
        "body": task.body,
        "program": task.program,
        "weights": task.weights,
        "layers": task.layers,
        "weight_mode": task.weight_mode,
        "cores": task.cores,
        "cpus": task.cpus,
        "blocks": task.blocks,
        "split": task.split,
        "afar": task.afar,
    }


def pair(task: Task) -> dict[str, Any]:
    """To the Body: this is your Shadow."""
    way = {} if task.way is None else {"url": task.way.url, "token": task.way.token}
    return fitting({"do": "pair", "shadow": task.shadow, **_for_body(task), **way})


def join(task: Task, sizes_bytes: tuple[int, int] | None = None) -> dict[str, Any]:
    """To the Shadow: this is your Body. One of another node has no buffers: the Shadow makes its own, of these sizes."""
    sizes = {} if sizes_bytes is None else {"to_bytes": sizes_bytes[0], "from_bytes": sizes_bytes[1]}
    return {"do": "join", "shadow": task.shadow, "body": task.body, "blocks": task.blocks, "split": task.split, **sizes}


def change_body(task: Task) -> dict[str, Any]:
    """To the Body: offload other blocks, or other shares."""
    return fitting({"do": "change", "shadow": task.shadow, **_for_body(task)})


def change_shadow(task: Task, blocks: tuple[int, ...]) -> dict[str, Any]:
    """To the Shadow: hold these blocks."""
    about = {"blocks": blocks, "split": task.split, "cores": task.cores, "cpus": task.cpus}
    return {"do": "change", "shadow": task.shadow, **about}


def unpair(shadow: str) -> dict[str, Any]:
    """To the Body: work without this Shadow."""
    return {"do": "unpair", "shadow": shadow}


def _for_body(task: Task) -> dict[str, Any]:
    return {"blocks": task.blocks, "split": task.split, "shadow_cores": task.cores, "expected_ms": task.expected_ms}
