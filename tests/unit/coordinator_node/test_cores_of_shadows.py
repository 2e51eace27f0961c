"""How many cores a Shadow may have: those of its node, when it begins and whenever it is to do something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnomon_coordinator.node.bodies import Bodies
from gnomon_coordinator.node.cpus import Cpus
from gnomon_coordinator.node.pool import Ears, Pool
from gnomon_coordinator.node.shadows import Shadows
from gnomon_coordinator.node.wishes import Wish
from gnomon_core.errors import GnomonError

FILES = {"program": "m/program.json", "weights": "m/weights.safetensors", "layers": "m/layers.json"}


def what(cores: int) -> dict[str, Any]:
    return {"cores": cores, "blocks": [0], "split": [0, 1], "expected_ms": [[5.0]]}


@pytest.fixture
async def shadows(tmp_path: Path) -> Shadows:
    """A node of two CPUs, whose pool is ready, but for its processes."""
    ears = Ears(lambda: None, lambda: None, lambda _: None, lambda *_: None)
    pool = Pool(tmp_path / "pool", 1, 1, ears)
    pool.warm = pool.coordinated = True
    made = Shadows(pool, Bodies(pool.to_supervisor, lambda: None), Cpus([0, 1]), tmp_path, lambda: None)
    # Its Body is on another node.
    about = {"pod_uid": "u-1", "function": "f.ns", "weight_mode": "shared", "max_batch": 2, "afar": True}
    made.create(Wish.read("s-1", about | FILES | what(1)))
    return made


def has(shadows: Shadows) -> tuple[int, list[int]]:
    [row] = shadows.rows()
    return row["cores"], row["wished"]["blocks"]


async def test_a_shadow_gets_other_cores_as_far_as_its_node_has_them(shadows: Shadows) -> None:
    shadows.change("s-1", what(2))
    assert has(shadows) == (2, [0])
    with pytest.raises(GnomonError, match="has 2 CPUs") as refused:
        shadows.change("s-1", what(3) | {"blocks": [1]})
    assert (refused.value.status, refused.value.code) == (503, "no_capacity")
    assert has(shadows) == (2, [0]), "it does what it did"
