"""Which profile a model gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.blocks import Block, Layers
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_platforms.profile_files import ProfileFiles

BLOCKS = tuple(Block(f"b{n}", 2 * n, 2 * n + 2, (f"v{n}",), (f"v{n + 1}",), (), 1, 1, splittable=True) for n in range(3))
LAYERS = Layers("digest", ("v3",), BLOCKS, {f"v{n}": 4 for n in range(4)})
TABLE = LatencyTable({1: {1: 0.1}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for machine in ("mine", "other"):
        profile = ModelProfile(
            "m@1", LAYERS, TABLE, (TABLE,) * 3, {"shared": Loading(0, 0)}, 0, 0, 0, 0, 0, provenance={"machine": machine}
        )
        (tmp_path / "m@1").mkdir(exist_ok=True)
        (tmp_path / "m@1" / f"{machine}.json").write_text(json.dumps(profile.to_json()))
    return tmp_path


def test_this_machines_profile_comes_before_newer_ones_of_others(folder: Path) -> None:
    found = ProfileFiles(folder, "mine").find("m@1", "digest", LAYERS)
    assert found is not None
    assert found.provenance["machine"] == "mine"


def test_a_profile_of_another_program_or_of_other_blocks_is_none_of_this_model(folder: Path) -> None:
    files = ProfileFiles(folder, "mine")
    assert files.find("m@1", "another", LAYERS) is None
    cut_elsewhere = replace(LAYERS, blocks=(replace(BLOCKS[0], end=3), replace(BLOCKS[1], begin=3), BLOCKS[2]))
    assert files.find("m@1", "digest", cut_elsewhere) is None
    assert files.find("m@2", "digest", LAYERS) is None


def test_a_damaged_profile_is_left_out(folder: Path) -> None:
    (folder / "m@1" / "mine.json").write_text("{")
    found = ProfileFiles(folder, "mine").find("m@1", "digest", LAYERS)
    assert found is not None
    assert found.provenance["machine"] == "other"


def test_a_profile_that_is_copied_over_the_last_one_leaves_that_until_it_is_whole(folder: Path) -> None:
    """Whoever does not rename it into place leaves a part of it to be seen."""
    files, path = ProfileFiles(folder, "mine"), folder / "m@1" / "mine.json"
    whole = path.read_text()
    before = files.find("m@1", "digest", LAYERS)
    path.write_text(whole[:100])
    assert files.find("m@1", "digest", LAYERS) == before
    path.write_text(whole.replace('"mine"', '"anew"'))
    found = files.find("m@1", "digest", LAYERS)
    assert found is not None
    assert found.provenance["machine"] == "anew"
