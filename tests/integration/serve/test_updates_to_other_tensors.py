"""Updates of a function to a model with other tensors under load, with real instances: each model answers its own requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import pytest
import torch

from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.faults.conftest import Faulty, freeze, go_on
from tests.integration.serve.conftest import Load
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]
WIDTHS = {"narrow": 2, "wide": 3}
"""Each model multiplies its input, of so many numbers, by that number."""
CORES = 4


class Multiplied(torch.nn.Module):
    """The input, multiplied by its width."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.shape[1])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """A gateway for all tests, because its zygote imports torch."""
    folder = tmp_path_factory.mktemp("updates")
    for name, width in WIDTHS.items():
        files = capture(Multiplied(), [torch.ones(2, width)], Description(name, input_names=("x",)))
        DirectoryRepository(folder / "models").put(name, "1", files)
    made = Faulty(folder / "state")
    made.start("--models", str(folder / "models"), "--cores", str(CORES))
    yield made
    made.stop()
    made.client.clear()


class Function:
    """A function whose instances keep a core each, for the length of a block."""

    def __init__(self, gateway: Faulty, name: str, model: str, instances: int) -> None:
        self.gateway, self.name, self._instances = gateway, name, instances
        self._put("POST", model)
        eventually(lambda: gateway.ready(name) == instances, "its instances are not ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.gateway.remove_functions()
        eventually(lambda: not self.gateway.pids(self.name), "an instance was left behind")

    def update(self, model: str) -> None:
        self._put("PUT", model)

    def updated(self, before: list[int]) -> bool:
        """Return whether none of these processes is left, and all instances are ready."""
        return not set(before) & set(self.pids) and self.gateway.ready(self.name) == self._instances

    @property
    def pids(self) -> list[int]:
        return self.gateway.pids(self.name)

    def ask(self, model: str, caller: int, number: int) -> str:
        """A request with this model's tensors. "refused" is a 400 that names the tensors which the function takes now."""
        width = WIDTHS[model]
        data = [float(caller), float(number), 1.0][:width]
        query = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, width], "data": data}]}
        answer = self.gateway.call("POST", f"/v2/models/{self.name}/infer", query)
        if answer.status == 200 and answer.json()["outputs"][0]["data"] == [width * value for value in data]:
            return "ok"
        [other] = set(WIDTHS.values()) - {width}
        if answer.status == 400 and answer.json()["error"].startswith(
            f"x has shape [1, {width}]; the model takes [samples, {other}]."
        ):
            return "refused"
        return f"{answer.status} {answer.data[:300]!r}"

    def _put(self, method: str, model: str) -> None:
        number = str(self._instances)
        answer = self.gateway.deploy(
            self.name,
            "",
            method=method,
            image="gnomon/body",
            labels={"com.openfaas.scale.min": number, "com.openfaas.scale.max": number},
            annotations={"gnomon/model": model, "gnomon/autoscaler": "fixed"},
            requests={"cpu": "1"},
        )
        assert answer.status == 202, answer.data


class Clients:
    """Clients of one model for `Load`. Each one notes whether it was answered after it had once been refused."""

    def __init__(self, function: Function, model: str) -> None:
        self._function, self._model = function, model
        self._refused: set[int] = set()

    def ask(self, caller: int, number: int) -> str:
        outcome = self._function.ask(self._model, caller, number)
        if outcome == "refused":
            self._refused.add(caller)
        elif caller in self._refused:
            return f"{outcome} after a refusal"
        return outcome


@pytest.mark.parametrize("instances", [2, CORES], ids=["with room", "without room for new instances"])
def test_update_under_load_refuses_no_request_of_the_model_that_the_function_has(gateway: Faulty, instances: int) -> None:
    with Function(gateway, f"load-{instances}", "narrow", instances) as function:
        before = function.pids
        with Load(Clients(function, "narrow").ask) as earlier:
            earlier.more(100)
            function.update("wide")
            with Load(lambda caller, number: function.ask("wide", caller, number)) as later:
                later.more(100)
                earlier.more(100)
                eventually(lambda: function.updated(before), "the instances were not replaced")
                later.more(100)
                assert set(later.stop()) == {"ok"}
            assert set(earlier.stop()) == {"ok", "refused"}


def test_requests_that_were_admitted_before_the_update_are_answered_by_the_old_model(gateway: Faulty) -> None:
    with Function(gateway, "admitted", "narrow", 1) as function, ThreadPoolExecutor(16) as clients:
        [pid] = function.pids
        freeze(pid)
        earlier = [clients.submit(function.ask, "narrow", 1, number) for number in range(8)]
        eventually(lambda: gateway.in_flight("admitted") == 8, "not admitted")
        function.update("wide")
        later = [clients.submit(function.ask, "wide", 2, number) for number in range(8)]
        assert {client.result() for client in later} == {"ok"}, "the new instance does not wait for the old one"
        assert function.ask("narrow", 3, 0) == "refused"
        go_on(pid)
        assert {client.result() for client in earlier} == {"ok"}
        eventually(lambda: function.updated([pid]), "the old instance was left behind")


def test_updates_to_and_fro_under_load_leave_the_last_model_serving(gateway: Faulty) -> None:
    with Function(gateway, "fro", "narrow", 2) as function:
        before = function.pids
        with (
            Load(lambda caller, number: function.ask("narrow", caller, number)) as narrow,
            Load(lambda caller, number: function.ask("wide", caller, number)) as wide,
        ):
            for model in ("wide", "narrow", "wide", "narrow", "wide"):
                function.update(model)
                narrow.more(20)
                wide.more(20)
            eventually(lambda: function.updated(before), "the instances were not replaced")
            assert set(narrow.stop()) | set(wide.stop()) == {"ok", "refused"}
        assert {function.ask("wide", 1, number) for number in range(20)} == {"ok"}
        assert function.ask("narrow", 1, 0) == "refused"
