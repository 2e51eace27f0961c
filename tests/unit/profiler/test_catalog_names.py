"""Which names the catalog knows, and what it says of those that it does not."""

import pytest

from gnomon_profiler.names import in_catalog, meant, not_in_catalog


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16", "ssd300_vgg16"])
def test_an_architecture_of_torchvision_is_told_by_its_whole_name(name: str) -> None:
    error = not_in_catalog(name)
    assert (error.status, error.code) == (404, "model_not_found")
    assert f"`gnomon models add torchvision:{name}`" in error.hint
    assert in_catalog(f"torchvision:{name}")


@pytest.mark.parametrize(
    "name", ["resnet", "resnet51", "Resnet50", "_resnet", "", "a(b", "x" * 1000, "list_models\n", "resnet:50"]
)
def test_nothing_is_guessed_of_other_names(name: str) -> None:
    hint = not_in_catalog(name).hint
    assert "gnomon models add" not in hint
    assert "efficientnet-lite0" in hint


@pytest.mark.parametrize(
    ("name", "source", "whole"),
    [
        ("mine", "resnet50", "torchvision:resnet50"),
        ("resnet50", "torchvision", "torchvision:resnet50"),
        ("torchvision:resnet50", "torchvision", "torchvision:resnet50"),
        ("yolov8x", "ultralytics", "ultralytics:yolov8x"),
        ("mine", "efficientnet-lite0", "efficientnet-lite0"),
        ("mine", "torchvision:resnet50", "torchvision:resnet50"),
        ("resnet50", "network.py:make", "network.py:make"),
        ("resnet50", "resnet51", "resnet51"),
    ],
)
def test_a_source_may_be_short_where_it_has_one_meaning(name: str, source: str, whole: str) -> None:
    assert meant(name, source) == whole
