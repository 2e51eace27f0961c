"""`gnomon serve` with a small network and its profile, and functions of it, whose answers are compared with the module's own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnomon_profiler.extractor import Description, capture
from tests.integration.serve.conftest import Serving
from tests.kubernetes.measured import in_a_hurry, network, put_profiled
from tests.waiting import eventually

MODEL = "line"
HEAD = "Inference-Header-Content-Length"
WITHIN = 12
"""Samples that a Body answers within the objective: three by its profile, which is four times slower. So large may batches be."""


@dataclass(frozen=True)
class Network:
    """The model's repository; what a sample takes by its profile, on one core; what each caller asks, and the right answers."""

    models: Path
    sample_s: float
    images: Tensor
    answers: Tensor

    def right(self, caller: int, answer: Tensor) -> bool:
        return torch.allclose(answer, self.answers[caller], rtol=0, atol=1e-5 * float(self.answers.abs().max()))

    def request(self, caller: int) -> tuple[dict[str, str], bytes]:
        """Headers and body by the open inference protocol."""
        image, data = self.images[caller], self.images[caller].numpy().tobytes()
        tensor = {"name": "image", "shape": [1, *image.shape], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        return {"Content-Type": "application/octet-stream", HEAD: str(len(head))}, head + data


def put_network(models: Path, callers: int, side: int) -> Network:
    """Store it with a profile of one and of two cores; images of `side` × `side`, and no caller's answer is another's."""
    module, description = network(), Description(MODEL, "1", "", {}, ("image",))
    sample_s = put_profiled(models, MODEL, capture(module, (torch.ones(2, 3, side, side),), description), (1, 2))
    brightness = torch.arange(1.0, callers + 1).view(-1, 1, 1, 1)
    images = brightness * torch.randn(callers, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        found = Network(models, sample_s, images, module(images))
    assert not any(found.right(number, found.answers[other]) for number in range(callers) for other in range(number))
    return found


@contextlib.contextmanager
def served(line: Network, state: Path, cores: int, *options: str) -> Iterator[Serving]:
    """A gateway with so many cores for instances, and further options of `gnomon serve`."""
    serving = Serving(state)
    serving.start("--models", str(line.models), "--cores", str(cores), *options)
    try:
        yield serving
    finally:
        serving.stop()
        serving.client.clear()


@dataclass(frozen=True)
class Function:
    """A function that serves the model."""

    serving: Serving
    line: Network
    name: str

    def ask(self, caller: int, _number: int = 0) -> str:
        """The caller's image: "ok" where the answer is the module's."""
        headers, body = self.line.request(caller)
        answer = self.serving.call("POST", f"/v2/models/{self.name}/infer", body, **headers)
        if answer.status != 200:
            return f"{answer.status} {answer.data[:200]!r}"
        numbers = torch.frombuffer(bytearray(answer.data[int(answer.headers[HEAD]) :]), dtype=torch.float32)
        return "ok" if self.line.right(caller, numbers) else "another answer"

    def now(self) -> dict[str, Any]:
        """The function's instances, and what its pairs have done so far."""
        document: dict[str, Any] = self.serving.call("GET", f"/gnomon/functions/{self.name}").json()
        return document

    def decisions(self) -> list[dict[str, Any]]:
        """The newest first."""
        return list(self.serving.call("GET", f"/gnomon/functions/{self.name}/decisions?limit=1000").json())

    def actions(self, kind: str) -> list[dict[str, Any]]:
        """The policy's decisions of this kind, the newest first."""
        return [action for decision in self.decisions() for action in decision["actions"] if action["action"] == kind]

    def looked(self, times: int) -> None:
        """Wait until the policy has decided so often once more."""
        goal = self._looks() + times
        eventually(lambda: self._looks() >= goal, "the policy does not decide")

    def shared(self) -> int:
        """Hand-overs of which a Shadow has given its rows back, so far."""
        return int(self.now()["pairs"]["hand_overs"].get("answered", 0))

    def ready(self, kind: str) -> list[str]:
        """The ids of its Bodies or Shadows that serve."""
        return [row["id"] for row in self.now()[kind] if row["state"] == "ready"]

    def _looks(self) -> int:
        return sum(1 + decision["repeats"] for decision in self.decisions())


@contextlib.contextmanager
def function(serving: Serving, line: Network, name: str, *, most: int = 1, **annotations: str) -> Iterator[Function]:
    """A function with one Body, for the length of a block. Body and Shadow have a core each unless more are allowed."""
    given = {"gnomon/max-cores": "1"} | {f"gnomon/{key.replace('_', '-')}": value for key, value in annotations.items()}
    labels = {"com.openfaas.scale.max": str(most)}
    document = {"service": name, "image": "gnomon/body", "labels": labels}
    answer = serving.call(
        "POST", "/system/functions", document | {"annotations": in_a_hurry(MODEL, line.sample_s, WITHIN) | given}
    )
    assert answer.status == 202, answer.data
    found = Function(serving, line, name)
    try:
        eventually(lambda: found.ready("bodies"), "its Body never served")
        yield found
    finally:
        serving.call("DELETE", "/system/functions", {"functionName": name})
    eventually(lambda: serving.call("GET", f"/gnomon/functions/{name}").status == 404, "it never went")
