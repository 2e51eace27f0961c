"""Cores, memory sizes and what they cost."""

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_platforms.aws_lambda.invocation import Report
from gnomon_platforms.aws_lambda.platform import Spent
from gnomon_platforms.aws_lambda.resources import cores_of, invoke_usd, memory_mb


def spec(**fields: object) -> FunctionSpec:
    return read_deployment({"service": "f", "image": "functions/alpine", **fields})


@pytest.mark.parametrize(("cores", "size_mb"), [(1, 1769), (2, 3538), (5, 8845), (6, 10_240)])
def test_a_core_is_1769_megabytes_and_the_largest_size_counts_as_six(cores: int, size_mb: int) -> None:
    assert memory_mb(spec(), cores) == size_mb


def test_seven_cores_do_not_fit() -> None:
    with pytest.raises(GnomonError, match="12383 MB") as refused:
        memory_mb(spec(), 7)
    assert (refused.value.status, refused.value.code) == (503, "no_capacity")


def test_a_memory_limit_asks_for_no_less_and_the_annotation_for_exactly_that() -> None:
    assert memory_mb(spec(limits={"memory": "4Gi"}), 1) == 4096
    assert memory_mb(spec(limits={"memory": "64Mi"}), 1) == 1769
    assert memory_mb(spec(limits={"memory": "4Gi"}, annotations={"gnomon/memory-mb": "900"}), 1) == 900
    assert cores_of(900) == pytest.approx(0.509, abs=0.001)


def test_half_a_core_may_be_asked_for_as_a_limit_and_changes_nothing_below_one() -> None:
    assert memory_mb(spec(limits={"cpu": "0.5"}), 1) == 1769
    assert memory_mb(spec(limits={"cpu": "2.5"}), 1) == 4423


def test_an_invoke_costs_what_equation_1_says() -> None:
    # 0.120 s · 1769/1024 GB · 1.66667e-5 + 2e-7
    assert invoke_usd(0.120, 1769) == pytest.approx(3.655e-6, rel=1e-3)
    # 10 GB of /tmp beyond the free half: 9.5 · 3.09e-8 a second
    assert invoke_usd(1.0, 1024, 10_240) - invoke_usd(1.0, 1024) == pytest.approx(9.5 * 3.09e-8)


def test_what_was_spent_is_the_sum_of_reports() -> None:
    cold = Report(duration_ms=100.0, billed_ms=600.0, memory_mb=1769, used_mb=80, init_ms=500.0)
    warm = Report(duration_ms=100.0, billed_ms=100.0, memory_mb=3538, used_mb=90)
    spent = Spent().plus(cold, 512).plus(warm, 512)
    assert (spent.invokes, spent.cold_starts) == (2, 1)
    assert spent.billed_s == pytest.approx(0.7)
    assert spent.cpu_s == pytest.approx(0.6 * 1 + 0.1 * 2)
    assert spent.cost == pytest.approx(invoke_usd(0.6, 1769) + invoke_usd(0.1, 3538))
