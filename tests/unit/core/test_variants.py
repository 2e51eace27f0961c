"""A query states what can be met, and a demand accepts the variants that satisfy its queries."""

import math

import pytest

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
