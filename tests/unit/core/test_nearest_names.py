"""Misspelt settings: what is refused with the name that was meant, and what is left to other tools."""

from __future__ import annotations

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.settings import SCALE_TABLE, TABLE, read_settings, refuse_misspelt


@pytest.mark.parametrize(
    ("labels", "annotations", "meant"),
    [
        ({"com.openfaas.scale.mim": "2"}, {}, "com.openfaas.scale.min"),
        ({"com.openfaas.scale.maxx": "2"}, {}, "com.openfaas.scale.max"),
        ({}, {"gnomo/max-batch": "3"}, "gnomon/max-batch"),
        ({}, {"gnomonn/slo-ms": "3"}, "gnomon/slo-ms"),
    ],
)
def test_a_key_that_is_nearly_ours_is_refused_with_the_key_that_was_meant(
    labels: dict[str, str], annotations: dict[str, str], meant: str
) -> None:
    with pytest.raises(GnomonError) as refused:
        refuse_misspelt(labels, annotations)
    assert (refused.value.status, refused.value.code) == (400, "unknown_setting")
    assert f"Did you mean {meant}?" in refused.value.hint


@pytest.mark.parametrize(
    "key",
    ["com.openfaas.scale.custom", "com.openfaas.scale.up.window", "com.openfaas.health.http.path", "prometheus.io/scrape",
     "example.com/max-batch", "topic", "x" * 100_000],
)  # fmt: skip
def test_keys_of_other_tools_pass(key: str) -> None:
    refuse_misspelt({key: "x"}, {key: "x"})


def test_every_known_key_passes() -> None:
    refuse_misspelt({one.key: "x" for one in SCALE_TABLE}, {one.key: "x" for one in TABLE})


def test_an_unknown_gnomon_annotation_names_the_nearest_known_one() -> None:
    with pytest.raises(GnomonError) as refused:
        read_settings({}, {"gnomon/autoscalr": "kpa"})
    assert refused.value.hint.startswith("Did you mean gnomon/autoscaler? Known ones: gnomon/model, ")


def test_deterministic_answers_need_batches_of_one() -> None:
    assert read_settings({}, {"gnomon/deterministic": "true", "gnomon/autoscaler": "asyfunc"}).max_batch == 1
    with pytest.raises(GnomonError, match="gnomon/max-batch is 4"):
        read_settings({}, {"gnomon/deterministic": "true", "gnomon/max-batch": "4"})
