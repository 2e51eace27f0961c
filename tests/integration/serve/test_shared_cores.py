"""Models that share the machine's cores: more of them than there are cores, and Bodies that borrow cores."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.serve.bursting import MODEL, WITHIN, Function, Network, function, put_network, served
from tests.integration.serve.conftest import Load, Serving
from tests.kubernetes.measured import in_a_hurry
from tests.waiting import eventually

pytestmark = pytest.mark.torch
MODELS = 10
CALLERS = 2


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return put_network(tmp_path_factory.mktemp("models"), CALLERS, 8)


@pytest.fixture(scope="module")
def two_cores(line: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with served(line, tmp_path_factory.mktemp("serve") / "state", 2) as serving:
        yield serving


def model(serving: Serving, line: Network, name: str, instances: int = 1, policy: str = "openfaas", **fields: object) -> Function:
    """Deploy the model under this name."""
    labels = {"com.openfaas.scale.min": str(instances)}
    annotations = {"gnomon/model": MODEL, "gnomon/autoscaler": policy, "gnomon/scheduler": "immediate"}
    document = {"service": name, "image": "gnomon/body", "labels": labels, "annotations": annotations, **fields}
    assert serving.call("POST", "/system/functions", document).status == 202
    return Function(serving, line, name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["openfaas", "kpa", "asyfunc", "batch"])
def test_ten_models_on_two_cores_start_answer_alone_and_all_at_once(two_cores: Serving, line: Network, policy: str) -> None:
    deployed = [model(two_cores, line, f"model-{number}", policy=policy) for number in range(MODELS)]
    for one in deployed:
        eventually(lambda one=one: one.ready("bodies"), f"{one.name} has no instance")
        assert one.ask(0) == "ok"
    with ThreadPoolExecutor(MODELS) as callers:
        for _ in range(5):
            assert set(callers.map(lambda one: one.ask(1), deployed)) == {"ok"}
    for one in deployed:
        two_cores.call("DELETE", "/system/functions", {"functionName": one.name})


@pytest.mark.timeout(300)
def test_a_model_without_requests_scales_to_zero_and_its_next_request_is_answered(two_cores: Serving, line: Network) -> None:
    labels = {"com.openfaas.scale.zero-duration": "1s"}
    seldom = model(two_cores, line, "seldom", labels=labels)
    stays = model(two_cores, line, "stays", labels=labels | {"com.openfaas.scale.min": "1"})
    eventually(lambda: stays.ready("bodies"))
    assert seldom.ask(0) == "ok"
    eventually(lambda: not seldom.now()["bodies"], "it never scaled to zero")
    assert two_cores.call("GET", "/v2/models/seldom/ready").status == 200, "its first request starts an instance"
    assert seldom.ask(1) == "ok"
    assert stays.ready("bodies"), "its label asks for one"
    for name in ("seldom", "stays"):
        two_cores.call("DELETE", "/system/functions", {"functionName": name})


@pytest.mark.timeout(300)
def test_idle_instances_leave_their_cores_to_others_and_those_that_ask_for_them_do_not(two_cores: Serving, line: Network) -> None:
    idle = model(two_cores, line, "idle", 2)
    eventually(lambda: len(idle.ready("bodies")) == 2, "the machine has two cores, and nothing else runs")
    busy = model(two_cores, line, "busy", 2)
    eventually(lambda: len(busy.ready("bodies")) == 2, "idle instances keep the cores")
    two_cores.call("DELETE", "/system/functions", {"functionName": "busy"})
    two_cores.call("DELETE", "/system/functions", {"functionName": "idle"})

    keeps = model(two_cores, line, "keeps", 2, requests={"cpu": "1"})
    eventually(lambda: len(keeps.ready("bodies")) == 2, "the machine has two cores, and nothing else asks for them")
    wants = model(two_cores, line, "wants", 1, requests={"cpu": "1"})
    eventually(lambda: wants.now()["problem"], "it got what is reserved")
    assert (wants.now()["problem"]["code"], wants.now()["bodies"]) == ("no_capacity", [])
    assert keeps.ask(0) == "ok"


LENT_CALLERS = 4
BORROWS = {"max_cores": "2", "autoscaler": "gnomon"}


def cores(function: Function) -> list[tuple[int, int | None]]:
    """The cores of each Body, and those that it keeps between batches."""
    return [(body["cores"], body.get("idle_cores")) for body in function.now()["bodies"]]


def switch(function: Function, policy: str) -> None:
    annotations = in_a_hurry(MODEL, function.line.sample_s, WITHIN) | {"gnomon/max-cores": "2", "gnomon/autoscaler": policy}
    document = {"service": function.name, "image": "gnomon/body", "labels": {"com.openfaas.scale.max": "1"}}
    answer = function.serving.call("PUT", "/system/functions", document | {"annotations": annotations})
    assert answer.status in (200, 202), answer.data


@pytest.mark.timeout(180)
def test_bodies_of_two_functions_borrow_cores_until_another_policy_takes_over(tmp_path: Path) -> None:
    line = put_network(tmp_path / "models", LENT_CALLERS, 64)
    with (
        served(line, tmp_path / "state", 2, "--lend-cores") as serving,
        function(serving, line, "left", **BORROWS) as left,
        function(serving, line, "right", **BORROWS) as right,
    ):
        assert cores(left) == cores(right) == [(2, 1)]
        [body] = left.ready("bodies")
        with Load(left.ask, LENT_CALLERS) as left_load, Load(right.ask, LENT_CALLERS) as other:
            left_load.more(5 * LENT_CALLERS)
            other.more(5 * LENT_CALLERS)
            switch(left, "kpa")
            eventually(lambda: cores(left) == [(1, None)], "its Body still borrows")
            left_load.more(5 * LENT_CALLERS)
            switch(left, "gnomon")
            eventually(lambda: cores(left) == [(2, 1)], "its Body does not borrow again")
            assert set(left_load.stop()) == {"ok"}
            assert set(other.stop()) == {"ok"}
        assert left.ready("bodies") == [body], "it served all the while"
