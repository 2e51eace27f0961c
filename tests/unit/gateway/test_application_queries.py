"""Queries to an application from clients that send more than any query needs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.variant_scaling import Demand
from gnomon_core.variants import Query, Variant
from gnomon_gateway.applications.application import Application, MakeSelector, Member
from gnomon_gateway.applications.controller import merge
from gnomon_gateway.applications.queries import Constraints, read_constraints
from gnomon_gateway.asynchronous.calls import Invocation
from gnomon_gateway.asynchronous.invoker import Invoker
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_gateway.variants.selection import VariantSelector

QUICK = Variant("a@1/program/fp32/1", "a", "program", "fp32", 1, 4, 0.6, 0.5, {1: 0.01, 4: 0.02}, 1 << 20, 200.0, 1.0)
EXACT = Variant("b@1/program/fp32/2", "b", "program", "fp32", 2, 4, 0.9, 0.5, {1: 0.04, 4: 0.1}, 1 << 20, 40.0, 2.0)
KINDS = 1000
"""Kinds of queries that a hostile client makes up."""


SIGNATURE = ModelSignature("a", "1", (TensorSpec("x", "FP32", (2,)),), (TensorSpec("y", "FP32", (1,)),))


def application(make_selector: MakeSelector = VariantSelector, settings: Settings | None = None) -> Application:
    """An application of both variants; none has an instance."""

    def runtime(name: str) -> FunctionRuntime:
        return FunctionRuntime(FunctionKey(name, "fn"), Settings(), Immediate(), LearnedLatency(4), signature=SIGNATURE)

    served = Application(FunctionKey("faces", "fn"), settings or Settings(), make_selector)
    served.use([Member(variant, runtime(variant.architecture)) for variant in (QUICK, EXACT)], SIGNATURE)
    return served


async def chosen_kinds(served: Application) -> None:
    for kind in range(KINDS):
        served.choose(Constraints(Query(latency_s=1.0 + kind)))


def test_made_up_kinds_of_queries_hide_no_load_of_others() -> None:
    async def load_of_others() -> tuple[int, int]:
        served = application()
        await chosen_kinds(served)
        before = sum(served.demands.values())
        for _ in range(7):
            served.choose(Constraints(Query(accuracy=0.85)), samples=3)
        return sum(served.demands.values()) - before, len(served.demands)

    counted, kinds = asyncio.run(load_of_others())
    assert counted == 21
    assert kinds <= 102, "the kinds that are counted apart, and one for each variant"


def test_further_kinds_count_for_the_variant_that_answers_them() -> None:
    async def counted() -> int:
        served = application()
        await chosen_kinds(served)
        served.choose(Constraints(Query(accuracy=0.85)), samples=5)
        return served.demands[Query(variant=EXACT.id)]

    assert asyncio.run(counted()) == 5


def test_asynchronous_query_counts_its_samples() -> None:
    async def counted() -> dict[Query, int]:
        served, directory = application(), FunctionDirectory()
        directory.add_application(served)
        tensor = {"name": "x", "shape": [3, 2], "datatype": "FP32", "data": [0.5] * 6}
        body = json.dumps({"inputs": [tensor], "parameters": {"accuracy": 0.85}}).encode()
        headers = (("Content-Type", "application/json"), ("Content-Length", str(len(body))))
        call = asyncio.ensure_future(Invoker(directory)(Invocation(served.key, "POST", "/", "", headers, body)))
        await asyncio.wait([call], timeout=0.5)
        call.cancel()
        return served.demands

    assert asyncio.run(counted()) == {Query(accuracy=0.85): 3}


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ({b"x-gnomon-accuracy": b"0.8", b"x-gnomon-accuracy-floor": b"0.5"}, {}),
        ({b"x-gnomon-accuracy": b"0.8"}, {"accuracy_floor": 0.5}),
        ({}, {"accuracy": 0.8, "accuracy_floor": 0.5}),
    ],
)
def test_accuracy_floor_is_read_from_headers_and_parameters(headers: dict[bytes, bytes], parameters: dict[str, Any]) -> None:
    assert read_constraints(headers, parameters).query == Query(accuracy=0.8, accuracy_floor=0.5)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"accuracy_floor": 0.5}, "invalid_constraint"),
        ({"accuracy": 0.5, "accuracy_floor": 0.6}, "invalid_constraint"),
        ({"accuracy": 0.5, "accuracy_floor": -0.1}, "invalid_accuracy"),
        ({"accuracy": 0.5, "accuracy_floor": "nan"}, "invalid_accuracy"),
        ({"accuracy": 0.5, "accuracy_floor": [0.4]}, "invalid_accuracy"),
        ({"accuracy": 0.5, "accuracy-floor": 0.4}, "unknown_constraint"),
    ],
)
def test_impossible_accuracy_floor_is_refused_with_what_is_allowed(parameters: dict[str, Any], code: str) -> None:
    with pytest.raises(GnomonError) as refused:
        read_constraints({}, parameters)
    assert (refused.value.status, refused.value.code) == (400, code)
    assert refused.value.hint


def test_degraded_answer_says_its_accuracy_and_is_counted() -> None:
    served = application()
    chosen = served.choose(Constraints(Query(accuracy=0.95, accuracy_floor=0.8)))
    assert chosen.lines == f"x-gnomon-variant: {EXACT.id}\r\nx-gnomon-degraded-accuracy: 0.9\r\n".encode()
    assert (served.answered_by, served.degraded_by) == ({EXACT.id: 1}, {EXACT.id: 1})
    assert b"degraded" not in served.choose(Constraints(Query(accuracy=0.9, accuracy_floor=0.8))).lines
    assert served.degraded_by == {EXACT.id: 1}


@pytest.mark.parametrize(("policy", "answers"), [("infaas", QUICK), ("kpa", EXACT)])
def test_wished_variant_that_is_scaled_by_its_own_requests_gets_one_while_it_has_no_instance(
    policy: str, answers: Variant
) -> None:
    made: list[VariantSelector] = []

    def make(variants: Iterable[Variant]) -> VariantSelector:
        made.append(VariantSelector(variants))
        return made[-1]

    served = application(make, Settings(autoscaler=policy, autoscaler_named=True))
    made[-1].instance_loaded(QUICK.id, "")
    assert served.choose(Constraints(Query(accuracy=0.8, accuracy_floor=0.5))).choice.variant is answers


def test_demand_is_for_the_floor_where_no_variant_has_the_wished_accuracy() -> None:
    demands = [Demand(2.0, accuracy=0.95, accuracy_floor=0.7), Demand(3.0, accuracy=0.8)]
    demands += [Demand(5.0, accuracy=0.8, accuracy_floor=0.5), Demand(1.0, accuracy=0.99, accuracy_floor=0.95)]
    merged = merge(demands, (QUICK, EXACT))
    assert [(demand.load_rps, demand.accuracy, demand.accuracy_floor) for demand in merged] == [(5.0, 0.7, None), (5.0, 0.8, 0.5)]


def test_demands_that_the_same_variants_satisfy_are_one() -> None:
    demands = [Demand(2.0, latency_s=1.0 + kind) for kind in range(KINDS)]
    demands += [Demand(3.0, accuracy=0.7), Demand(4.0, accuracy=0.8), Demand(5.0, accuracy=0.95)]
    merged = merge(demands, (QUICK, EXACT))
    assert [(variant.load_rps, variant.accuracy) for variant in merged] == [(2.0 * KINDS, None), (7.0, 0.7)]


@pytest.mark.parametrize("count", [33, 5000])
def test_many_parameters_are_refused_before_they_are_compared(count: int) -> None:
    began_s = time.thread_time()
    with pytest.raises(GnomonError) as refused:
        read_constraints({}, {f"latencyx{number}": 0 for number in range(count)})
    assert (refused.value.status, refused.value.code) == (400, "too_many_parameters")
    assert "32" in refused.value.hint
    assert time.thread_time() - began_s < 0.05


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ({}, {"variant": "v" * 50_000}),
        ({}, {"model": "m" * 50_000}),
        ({b"x-gnomon-variant": b"v" * 50_000}, {}),
        ({b"x-gnomon-variant": b"v" * 200}, {"variant": "w" * 200}),
        ({}, {"nearest": "n" * 50_000}),
        ({}, {"latency_ms": "9" * 50_000}),
        ({}, {"latency_ms": " " * 50_000 + "9"}),
        ({}, {"accuracy": " " * 50_000 + "0.7"}),
        ({}, {"variant": " " * 50_000 + "a"}),
    ],
)
def test_message_has_only_the_beginning_of_what_was_sent(headers: dict[bytes, bytes], parameters: dict[str, Any]) -> None:
    with pytest.raises(GnomonError) as refused:
        read_constraints(headers, parameters)
    assert refused.value.status == 400
    assert refused.value.hint
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("query", [Query(variant="nothing like it"), Query(architecture="z")])
def test_unknown_name_is_told_with_the_known_ones(query: Query) -> None:
    with pytest.raises(GnomonError) as refused:
        VariantSelector([QUICK, EXACT]).select(query)
    assert refused.value.status == 404
    known = QUICK.id if query.variant is not None else "a, b"
    assert known in refused.value.hint
