"""Images, profiles and models on one machine."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.blocks import Block, Layers
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_platforms.aws_lambda import recipes as lambda_recipes
from gnomon_platforms.aws_lambda.resources import LambdaOptions
from gnomon_platforms.images import ImageTable, bare_name
from gnomon_platforms.local import recipes as local_recipes
from gnomon_platforms.profile_files import ProfileFiles
from tests.platform_testing import NoModels, NothingBuilt
from tests.refusals import refused


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        ("functions/alpine", "process"),
        ("functions/alpine:latest", "process"),
        ("docker.io/functions/alpine:latest", "process"),
        ("docker.io/theaxer/redirector:latest", "redirect"),
        ("gnomon/body:0.1", "model"),
        ("gnomon/body-gpu", "model"),
        ("functions/alpine@sha256:" + "0" * 64, "process"),
    ],
)
def test_the_built_in_table_knows(image: str, kind: str) -> None:
    entry = ImageTable().find(image)
    assert entry.kind == kind


@pytest.mark.parametrize("image", ["functions/alpine2", "evil.example/functions/alpine", "localhost:5000/functions/alpine", "x"])
def test_foreign_image_is_not_taken_for_ours(image: str) -> None:
    assert ImageTable().find(image) is None


def test_a_registry_with_a_port_keeps_it() -> None:
    assert bare_name("localhost:5000/a/b:1") == "localhost:5000/a/b"


def test_a_users_own_rows_come_first_and_may_set_variables(tmp_path: Path) -> None:
    file = tmp_path / "images.yml"
    file.write_text("images:\n  - match: functions/*\n    kind: process\n    environment: {fprocess: wc -c, exec_timeout: 5}\n")
    table = ImageTable(file)
    entry = table.find("functions/alpine")
    assert entry.environment == {"fprocess": "wc -c", "exec_timeout": "5"}
    assert table.find("theaxer/redirector") is not None
    assert str(file) in table.unknown("x").hint


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("images: [{match: a}]", "one of process, redirect, model"),
        ("images: [{match: a, kind: docker}]", "one of process, redirect, model"),
        ("images: [{match: a, kind: process, port: 1}]", "unknown keys port"),
        ("images: [{kind: process}]", "needs a match"),
        ("images: [{match: a, kind: process, environment: [A=b]}]", "is not written as NAME: VALUE"),
        ("- a", "no list `images`"),
        ("images:", "no list `images`"),
        ("images: [", "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_read_says_where_and_why(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "images.yml"
    file.write_text(text)
    with refused(match=complaint, message=str(file)):
        ImageTable(file)


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
    assert found.provenance["machine"] == "other"


def test_half_copied_profile_leaves_the_previous_one_in_use(folder: Path) -> None:
    """A copy that is not renamed into place shows a part of the profile."""
    files, path = ProfileFiles(folder, "mine"), folder / "m@1" / "mine.json"
    whole = path.read_text()
    before = files.find("m@1", "digest", LAYERS)
    path.write_text(whole[:100])
    assert files.find("m@1", "digest", LAYERS) == before
    path.write_text(whole.replace('"mine"', '"anew"'))
    found = files.find("m@1", "digest", LAYERS)
    assert found.provenance["machine"] == "anew"


Find = Callable[[FunctionSpec], object]
MODEL = {"gnomon/model": "resnet50@1"}


@pytest.fixture(params=["local", "lambda"])
def find(request: pytest.FixtureRequest, tmp_path: Path) -> Find:
    """How functions are made, here and on Lambda."""
    if request.param == "local":
        return local_recipes.Recipes(tmp_path, NoModels(), NothingBuilt(), ImageTable(), ProfileFiles(None)).find
    return lambda_recipes.Recipes(
        LambdaOptions("arn:aws:iam::123456789012:role/r"), NoModels(), NothingBuilt(), ImageTable()
    ).find


@pytest.mark.parametrize("image", ["functions/alpine:latest", "theaxer/redirector"])
def test_a_process_or_a_redirector_has_no_use_for_a_model(find: Find, image: str) -> None:
    document = {"service": "fn", "image": image, "envProcess": "cat", "envVars": {"destination": "http://example.com"}}
    find(read_deployment(document))
    with pytest.raises(GnomonError) as refused:
        find(read_deployment({**document, "annotations": MODEL}))
    assert (refused.value.status, refused.value.code) == (400, "model_unused")
    assert refused.value.message == f"annotation gnomon/model is 'resnet50@1', but image '{image}' serves no model."
    assert "gnomon/body" in refused.value.hint
