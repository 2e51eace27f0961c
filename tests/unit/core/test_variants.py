"""Variants: the constraints of a query, the variants that a demand accepts, and the measured variants of a model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.profiled_variants import DISTURBED, FORMAT, MeasuredEngine
from benchmarks.simulation.variant_catalogs import profiled_variants
from gnomon_core.errors import GnomonError
from gnomon_core.variant_scaling import Demand
from gnomon_core.variants import Query, Variant

VARIANT = Variant(
    "r50-ort-4", "resnet50", "onnx", "fp32", 2, 4, 0.76, 1.5, {1: 0.03, 4: 0.1}, 400, 40.0, 2.0, devices={"gpu": 1.0}
)


@pytest.mark.parametrize(
    "constraint",
    [
        {"latency_s": 0.0},
        {"latency_s": math.nan},
        {"accuracy": 1.01},
        {"accuracy": -0.1},
        {"accuracy": math.nan},
        {"cost_per_s": -1.0},
        {"cost_per_s": math.nan},
    ],
)
def test_impossible_constraint_is_a_client_error(constraint: dict[str, float]) -> None:
    with pytest.raises(GnomonError) as caught:
        Query(**constraint)
    assert (caught.value.status, caught.value.code) == (400, "invalid_query")


def test_resources_of_a_variant_include_its_devices() -> None:
    assert VARIANT.resources == {"cores": 2.0, "memory_bytes": 400.0, "gpu": 1.0}


@pytest.mark.parametrize(
    ("demand", "accepted"),
    [
        (Demand(1.0), True),
        (Demand(1.0, 0.1, 0.76, 2.0, "resnet50"), True),
        (Demand(1.0, latency_s=0.0999), False),  # its largest batch takes 0.1 s
        (Demand(1.0, accuracy=0.77), False),
        (Demand(1.0, cost_per_s=1.99), False),
        (Demand(1.0, architecture="vgg16"), False),
    ],
)
def test_demand_accepts_what_satisfies_every_constraint(demand: Demand, *, accepted: bool) -> None:
    assert demand.accepts(VARIANT) is accepted


QUIET = MeasuredEngine("net@1", "openvino-int8", 2, 0.9, 0.5, {1: 0.01, 4: 0.02}, 0.1, 1000, 190.0, {"openvino": "1"})
LOUD = MeasuredEngine("net@1", "program", 1, None, 0.1, {1: 0.05}, DISTURBED + 0.1, 2000, 20.0, {})


def saved(folder: Path, document: object) -> Path:
    path = folder / "machine.json"
    path.write_text(json.dumps(document))
    return path


def test_quiet_measurements_are_a_variant_for_each_largest_batch(tmp_path: Path) -> None:
    path = saved(tmp_path, {"format": FORMAT, "engines": [QUIET.to_json(), LOUD.to_json()]})
    small, large = profiled_variants(path)
    assert (small.id, large.id) == ("net@1/openvino/int8/2/1", "net@1/openvino/int8/2/4")
    assert (small.latency_s, large.latency_s) == ({1: 0.01}, {1: 0.01, 4: 0.02})
    assert (small.saturation_rps, large.saturation_rps) == (pytest.approx(100.0), 190.0)
    assert (large.architecture, large.precision, large.cores, large.accuracy, large.cost_per_s) == ("net", "int8", 2, 0.9, 2.0)
    assert [variant.engine for variant in profiled_variants(path, disturbed=True)] == ["openvino", "openvino", "program"]


@pytest.mark.parametrize(
    "document", [[], {}, {"format": FORMAT}, {"format": FORMAT, "engines": [{}]}, {"format": FORMAT, "engines": 1}]
)
def test_file_without_variants_is_refused(tmp_path: Path, document: object) -> None:
    with pytest.raises(ValueError, match="variants"):
        profiled_variants(saved(tmp_path, document))
