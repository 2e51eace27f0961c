"""A function that names a model for an image which serves none is told so, and not served without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_platforms.aws_lambda import recipes as lambda_recipes
from gnomon_platforms.aws_lambda.resources import LambdaOptions
from gnomon_platforms.images import ImageTable
from gnomon_platforms.local import recipes as local_recipes
from gnomon_platforms.testing import NoModels, NothingBuilt

Find = Callable[[FunctionSpec], object]
MODEL = {"gnomon/model": "resnet50@1"}


@pytest.fixture(params=["local", "lambda"])
def find(request: pytest.FixtureRequest, tmp_path: Path) -> Find:
    """How functions are made, here and on Lambda."""
    if request.param == "local":
        return local_recipes.Recipes(tmp_path, NoModels(), NothingBuilt(), ImageTable()).find
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
