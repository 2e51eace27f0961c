"""How many cores a Shadow may have: those of its node, when it begins and whenever it is to do something else."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gnomon_coordinator.node.bodies import Bodies
from gnomon_coordinator.node.pool import Cpus, Pool, PoolEvents
from gnomon_coordinator.node.shadows import NodeShadows, ShadowRequest
from tests.refusals import refused

FILES = {"program": "m/program.json", "weights": "m/weights.safetensors", "layers": "m/layers.json"}


def what(cores: int) -> dict[str, Any]:
    return {"cores": cores, "blocks": [0], "split": [0, 1], "expected_ms": [[5.0]]}


# Its Body is on another node.
ABOUT = {"pod_uid": "u-1", "function": "f.ns", "weight_mode": "shared", "max_batch": 2, "afar": True}
WISH = ShadowRequest.read("s-1", ABOUT | FILES | what(1))


def a_node(folder: Path) -> tuple[NodeShadows, Cpus]:
    """A node of two CPUs, whose pool is ready, but for its processes."""
    ears = PoolEvents(lambda: None, lambda: None, lambda _: None, lambda *_: None)
    pool, cpus = Pool(folder / "pool", 1, 1, ears), Cpus([0, 1])
    pool.warm = pool.coordinated = True
    return NodeShadows(pool, Bodies(pool.to_supervisor, lambda: None), cpus, folder, lambda: None), cpus


async def test_shadow_that_cannot_be_created_holds_no_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, cpus = a_node(tmp_path)

    def no_more(descriptor: int) -> int:
        raise OSError(errno.EMFILE, f"no descriptor like {descriptor}")

    before = descriptors()
    monkeypatch.setattr(os, "dup", no_more)
    with refused(503, "no_capacity", match="no descriptor"):
        node.create(WISH)
    assert (node.rows(), cpus.claimed) == ([], 0)
    assert descriptors() == before
    monkeypatch.undo()
    node.create(WISH)
    assert cpus.claimed == 1
    node.lost()


def descriptors() -> set[str]:
    """Of this process."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def has(shadows: NodeShadows) -> tuple[int, list[int]]:
    [row] = shadows.rows()
    return row["cores"], row["wished"]["blocks"]


async def test_change_of_cores_is_bounded_by_the_node(tmp_path: Path) -> None:
    shadows, _ = a_node(tmp_path)
    shadows.create(WISH)
    shadows.change("s-1", what(2))
    assert has(shadows) == (2, [0])
    with refused(503, "no_capacity", match="has 2 CPUs"):
        shadows.change("s-1", what(3) | {"blocks": [1]})
    assert has(shadows) == (2, [0]), "it does what it did"
    shadows.lost()
