"""More models than the machine has cores: each has its instance and answers, and busy ones share what there is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.serve.bursting import MODEL, Function, Network, put_network, served
from tests.integration.serve.conftest import Serving
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
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


@pytest.mark.parametrize("policy", ["openfaas", "kpa", "asyfunc", "batch"])
def test_ten_models_on_two_cores_start_answer_alone_and_all_at_once(two_cores: Serving, line: Network, policy: str) -> None:
    deployed = [model(two_cores, line, f"model-{number}", policy=policy) for number in range(MODELS)]
    for function in deployed:
        eventually(lambda function=function: function.ready("bodies"), f"{function.name} has no instance")
        assert function.ask(0) == "ok"
    with ThreadPoolExecutor(MODELS) as callers:
        for _ in range(5):
            assert set(callers.map(lambda function: function.ask(1), deployed)) == {"ok"}
    for function in deployed:
        two_cores.call("DELETE", "/system/functions", {"functionName": function.name})


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
