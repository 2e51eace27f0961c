"""`gnomon serve` with two small models of one application: which one answers a query, and what a restart keeps."""

from __future__ import annotations

import http.server
import json
import queue
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import urllib3

import gnomon
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import Serving, started
from tests.kubernetes.measured import network
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


SIDE = 8
ACCURACY = {"quick": 0.6, "exact": 0.9}
"""As the developer states them; which model answered is read from its answer, which the two give differently."""
IMAGE = torch.linspace(0.0, 1.0, 3 * SIDE * SIDE).reshape(1, 3, SIDE, SIDE)


def networks() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    wide = [layer for width in (3, 32, 32) for layer in (torch.nn.Conv2d(width, 32, 3, padding=1), torch.nn.ReLU())]
    return {
        "quick": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, 4)).eval(),
        "exact": torch.nn.Sequential(*wide, torch.nn.Flatten(), torch.nn.Linear(32 * SIDE * SIDE, 4)).eval(),
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with both, and one of another task."""
    folder = tmp_path_factory.mktemp("models")
    repository = DirectoryRepository(folder)
    others = {"other": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()}
    for name, module in {**networks(), **others}.items():
        side = 2 if name == "other" else SIDE
        files = capture(module, (torch.ones(2, 3, side, side),), Description(name, "1", "", {}, ("image",)))
        repository.put(name, "1", files)
    return folder


@pytest.fixture(scope="module")
def answers() -> dict[str, list[float]]:
    with torch.inference_mode():
        return {name: network(IMAGE)[0].tolist() for name, network in networks().items()}


@dataclass
class Receiver:
    """The receiver of asynchronous answers: its address, and the headers and bodies that it got."""

    host: str
    received: queue.Queue[tuple[Any, bytes]]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    received: queue.Queue[tuple[Any, bytes]] = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.put((self.headers, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Receiver(f"127.0.0.1:{server.server_port}", received)
        server.shutdown()


@pytest.fixture(scope="module")
def options(models: Path, receiver: Receiver) -> tuple[str, ...]:
    """Options of the gateway's start and restart."""
    return ("--models", str(models), "--callback-host", receiver.host)


@pytest.fixture(scope="module")
def gateway(options: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A gateway with the application `faces` of both models, each measured."""
    with started(tmp_path_factory.mktemp("serve") / "state", *options) as serving:
        for name, accuracy in ACCURACY.items():
            answer = register(serving, "faces", name, accuracy=accuracy)
            assert answer.status == 202, answer.data
        measured(serving, "faces", 2)
        yield serving


def register(serving: Serving, app: str, model: str, **document: Any) -> urllib3.BaseHTTPResponse:
    return serving.call("PUT", f"/system/applications/{app}/models/{model}", document)


def measured(serving: Serving, app: str, count: int) -> list[dict[str, Any]]:
    """The variants of the application, once so many have numbers."""

    def found() -> list[dict[str, Any]]:
        variants = [variant for variant in described(serving, app)["variants"] if variant["state"] in ("active", "inactive")]
        return variants if len(variants) == count else []

    return eventually(found, "its variants were never measured")


def described(serving: Serving, app: str) -> dict[str, Any]:
    answer = serving.call("GET", f"/system/applications/{app}")
    assert answer.status == 200, answer.data
    document: dict[str, Any] = answer.json()
    return document


def infer(serving: Serving, app: str, parameters: dict[str, Any] | None = None, **headers: str) -> urllib3.BaseHTTPResponse:
    tensor = {"name": "image", "shape": list(IMAGE.shape), "datatype": "FP32", "data": IMAGE.flatten().tolist()}
    document = {"inputs": [tensor], "parameters": parameters or {}}
    return serving.call("POST", f"/v2/models/{app}/infer", document, **headers)


def answered_by(answer: urllib3.BaseHTTPResponse, answers: dict[str, list[float]]) -> str:
    """The model whose answer this is, by its numbers; the header must say the same."""
    assert answer.status == 200, answer.data
    data = answer.json()["outputs"][0]["data"]
    (name,) = [name for name, right in answers.items() if torch.allclose(torch.tensor(data), torch.tensor(right), atol=1e-4)]
    assert answer.headers["X-Gnomon-Variant"].startswith(f"{name}@1/")
    return name


def code_of(answer: urllib3.BaseHTTPResponse) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["code"]


def test_accuracy_floor_never_gets_a_variant_below_it(gateway: Serving, answers: dict[str, list[float]]) -> None:
    floors = [0.0, 0.55, 0.6, 0.61, 0.75, 0.9] * 10
    with ThreadPoolExecutor(6) as callers:
        found = list(callers.map(lambda floor: answered_by(infer(gateway, "faces", {"accuracy": floor}), answers), floors))
    assert all(ACCURACY[name] >= floor for name, floor in zip(found, floors, strict=True))
    assert {name for name, floor in zip(found, floors, strict=True) if floor > ACCURACY["quick"]} == {"exact"}


def test_headers_say_the_same_as_parameters(gateway: Serving, answers: dict[str, list[float]]) -> None:
    assert answered_by(infer(gateway, "faces", X_Gnomon_Accuracy="0.8"), answers) == "exact"
    assert answered_by(infer(gateway, "faces", X_Gnomon_Model="quick"), answers) == "quick"
    assert answered_by(infer(gateway, "faces", {"model": "exact", "latency_ms": 60_000}), answers) == "exact"
    (variant,) = [variant["id"] for variant in described(gateway, "faces")["variants"] if variant["model"] == "quick@1"]
    assert answered_by(infer(gateway, "faces", {"variant": variant}), answers) == "quick"


def test_function_path_takes_the_same_query(gateway: Serving, answers: dict[str, list[float]]) -> None:
    tensor = {"name": "image", "shape": list(IMAGE.shape), "datatype": "FP32", "data": IMAGE.flatten().tolist()}
    document = {"inputs": [tensor], "parameters": {"accuracy": 0.9}}
    answer = gateway.call("POST", "/function/faces", document, Content_Type="application/json")
    assert answered_by(answer, answers) == "exact"


def test_unsatisfiable_query_is_refused_with_the_nearest_variant_or_gets_it(
    gateway: Serving, answers: dict[str, list[float]]
) -> None:
    refusal = infer(gateway, "faces", {"accuracy": 0.95})
    assert refusal.status == 422
    assert refusal.headers["X-Gnomon-Nearest"].startswith("exact@1/")
    assert "accuracy 0.9 instead of 0.95" in refusal.json()["error"]
    for accepted in (
        infer(gateway, "faces", {"accuracy": 0.95}, X_Gnomon_Nearest="serve"),
        infer(gateway, "faces", {"accuracy": 0.95, "nearest": "serve"}),
    ):
        assert answered_by(accepted, answers) == "exact"
        assert accepted.headers["X-Gnomon-Nearest"] == accepted.headers["X-Gnomon-Variant"]
    assert infer(gateway, "faces", {"latency_ms": 0.001}).status == 422


def test_query_that_accepts_less_accuracy_gets_no_less_than_that_and_is_told(
    gateway: Serving, answers: dict[str, list[float]]
) -> None:
    def counted() -> float:
        page = gateway.call("GET", "/metrics").data.decode()
        found = re.findall(r'^gnomon_application_degraded_queries_total{.*variant="exact@1/.*"} (.*)$', page, re.MULTILINE)
        return float(found[0]) if found else 0.0

    before = counted()
    for degraded in (
        infer(gateway, "faces", {"accuracy": 0.95, "accuracy_floor": 0.7}),
        infer(gateway, "faces", X_Gnomon_Accuracy="0.95", X_Gnomon_Accuracy_Floor="0.7"),
    ):
        assert answered_by(degraded, answers) == "exact"
        assert degraded.headers["X-Gnomon-Degraded-Accuracy"] == "0.9"
    assert counted() == before + 2
    wished = infer(gateway, "faces", {"accuracy": 0.9, "accuracy_floor": 0.7})
    assert answered_by(wished, answers) == "exact"
    assert "X-Gnomon-Degraded-Accuracy" not in wished.headers
    assert counted() == before + 2
    refusal = infer(gateway, "faces", {"accuracy": 0.99, "accuracy_floor": 0.95})
    assert refusal.status == 422
    assert "accuracy 0.9 instead of 0.95" in refusal.json()["error"]


@pytest.mark.parametrize(
    ("parameters", "headers", "part"),
    [
        ({"accuracy": 70}, {}, "0.7 is 70 %"),
        ({"accuracy": "high"}, {}, "from 0 to 1"),
        ({"latency_ms": 0}, {}, "above 0"),
        ({"latency_ms": True}, {}, "above 0"),
        ({"latency": 200}, {}, "Did you mean latency_ms?"),
        ({"acuracy": 0.7}, {}, "Did you mean accuracy?"),
        ({"accuracy_floor": 0.7}, {}, "send both"),
        ({"accuracy": 0.7}, {"X_Gnomon_Accuracy_Floor": "0.8"}, "from 0 to accuracy"),
        ({"cost": -1}, {}, "above 0"),
        ({"model": 3}, {}, "name of a model"),
        ({"nearest": "maybe"}, {}, "serve or suggest"),
        ({}, {"X_Gnomon_Latency_Ms": "soon"}, "milliseconds"),
        ({"accuracy": 0.7}, {"X_Gnomon_Accuracy": "0.8"}, "one of them"),
    ],
)
def test_malformed_constraints_are_refused_with_what_is_allowed(
    gateway: Serving, parameters: dict[str, Any], headers: dict[str, str], part: str
) -> None:
    answer = infer(gateway, "faces", parameters, **headers)
    assert answer.status == 400, answer.data
    assert part in answer.json()["error"]


def test_unknown_model_or_variant_of_a_query_is_not_found(gateway: Serving) -> None:
    assert infer(gateway, "faces", {"model": "exactt"}).status == 404
    assert infer(gateway, "faces", {"variant": "quick@1/program/fp32/64"}).status == 404
    assert infer(gateway, "nobody").status == 404
    assert gateway.call("POST", "/v2/models/faces/versions/1/infer", {}).status == 404


def test_metrics_count_members_under_their_application(gateway: Serving) -> None:
    for model in ACCURACY:
        assert infer(gateway, "faces", {"model": model}).status == 200
    assert infer(gateway, "faces", {"accuracy": 1.0}).status == 422
    page = gateway.call("GET", "/metrics").data.decode()
    assert "faces--" not in page
    by_variant = r'^gnomon_application_queries_total{application="faces.openfaas-fn",variant="(.*?)"} (.*)$'
    counts = dict(re.findall(by_variant, page, re.MULTILINE))
    assert counts.keys() == {variant["id"] for variant in described(gateway, "faces")["variants"]}
    assert all(float(count) >= 1 for count in counts.values())
    by_code = r'^gateway_function_invocation_total{code="(\d+)",function_name="faces.openfaas-fn"} (.*)$'
    answered = dict(re.findall(by_code, page, re.MULTILINE))
    assert float(answered["200"]) >= 1
    assert float(answered["422"]) >= 1


def test_asynchronous_query_is_answered_by_the_variant_that_satisfies_it(
    gateway: Serving, receiver: Receiver, answers: dict[str, list[float]]
) -> None:
    def received(accuracy: float) -> tuple[Any, bytes]:
        tensor = {"name": "image", "shape": list(IMAGE.shape), "datatype": "FP32", "data": IMAGE.flatten().tolist()}
        headers = {"X_Callback_Url": f"http://{receiver.host}/", "Content_Type": "application/json"}
        document = {"inputs": [tensor], "parameters": {"accuracy": accuracy}}
        accepted = gateway.call("POST", "/async-function/faces", document, **headers)
        assert accepted.status == 202, accepted.data
        return receiver.received.get(timeout=60)

    headers, body = received(0.9)
    assert headers["X-Gnomon-Variant"].startswith("exact@1/")
    assert json.loads(body)["model_name"] == "faces"
    assert torch.allclose(torch.tensor(json.loads(body)["outputs"][0]["data"]), torch.tensor(answers["exact"]), atol=1e-4)
    headers, _ = received(0.95)
    assert headers["X-Gnomon-Nearest"].startswith("exact@1/")
    assert headers["X-Function-Status"] == "422"


def test_members_are_hidden_but_answer_when_named(gateway: Serving) -> None:
    names = [function["name"] for function in gateway.call("GET", "/system/functions").json()]
    assert names == ["faces"]
    members = [variant["function"] for variant in described(gateway, "faces")["variants"]]
    assert len(members) == 2
    assert all(name.startswith("faces--") for name in members)
    for name in members:
        assert gateway.call("GET", f"/system/function/{name}").status == 200
        refused = gateway.call("DELETE", "/system/functions", {"functionName": name})
        assert code_of(refused) == (409, "member_of_application")
        assert code_of(gateway.deploy(name)) == (409, "member_of_application")


def test_endpoint_is_described_like_a_function(gateway: Serving) -> None:
    assert infer(gateway, "faces").status == 200
    status = gateway.status("faces")
    assert status["availableReplicas"] >= 1
    assert status["invocationCount"] >= 1
    metadata = gateway.call("GET", "/v2/models/faces").json()
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, SIDE, SIDE]}]
    assert gateway.call("GET", "/v2/models/faces/ready").status == 200
    assert code_of(gateway.call("POST", "/system/scale-function/faces", {"replicas": 2})) == (409, "scaled_by_variant")


def test_registrations_that_cannot_serve_are_refused(gateway: Serving) -> None:
    assert code_of(register(gateway, "faces", "nothing", accuracy=0.5)) == (404, "model_not_found")
    assert code_of(register(gateway, "faces", "other", accuracy=0.5)) == (409, "other_tensors")
    assert code_of(register(gateway, "faces", "quick", accuracy=1.5)) == (400, "invalid_accuracy")
    assert code_of(register(gateway, "faces", "quick", accuracy="0.5")) == (400, "invalid_accuracy")
    assert code_of(register(gateway, "faces", "quick", acuracy=0.5)) == (400, "invalid_field")
    assert code_of(register(gateway, "faces", "quick", variants={"quick@1/none": 0.5})) == (400, "unknown_variant")
    assert code_of(register(gateway, "Faces", "quick", accuracy=0.5)) == (400, "invalid_application")
    assert code_of(gateway.call("DELETE", "/system/applications/faces/models/nothing")) == (404, "model_not_registered")
    assert code_of(gateway.call("GET", "/system/applications/nobody")) == (404, "application_not_found")
    taken = {"service": "again", "image": "gnomon/body", "annotations": {"gnomon/model": "app:faces"}}
    assert code_of(gateway.call("POST", "/system/functions", taken)) == (409, "application_has_endpoint")


def test_measured_accuracy_of_a_variant_replaces_that_of_its_model(gateway: Serving, answers: dict[str, list[float]]) -> None:
    assert register(gateway, "cats", "quick", accuracy=0.6).status == 202
    (variant,) = measured(gateway, "cats", 1)
    assert register(gateway, "cats", "quick", variants={variant["id"]: 0.5}).status == 202
    eventually(lambda: described(gateway, "cats")["variants"][0].get("accuracy") == 0.5)
    assert infer(gateway, "cats", {"accuracy": 0.55}).status == 422
    assert answered_by(infer(gateway, "cats", {"accuracy": 0.5}), answers) == "quick"
    assert gateway.call("DELETE", "/system/applications/cats").status == 202
    assert gateway.call("GET", "/system/applications/cats").status == 404
    assert infer(gateway, "cats").status == 404


def test_deployed_endpoint_without_models_says_so_until_one_is_registered(
    gateway: Serving, answers: dict[str, list[float]]
) -> None:
    annotations = {"gnomon/model": "app:dogs", "gnomon/autoscaler": "infaas", "gnomon/max-batch": "2"}
    document = {"service": "dogs", "image": "gnomon/body", "annotations": annotations}
    assert gateway.call("POST", "/system/functions", document).status == 202
    empty = infer(gateway, "dogs")
    assert empty.status == 409
    assert "gnomon app add dogs" in empty.json()["error"]
    assert register(gateway, "dogs", "exact", accuracy=0.9).status == 202
    (variant,) = measured(gateway, "dogs", 1)
    assert variant["max_batch"] == 2
    assert answered_by(infer(gateway, "dogs", {"accuracy": 0.9}), answers) == "exact"
    assert gateway.call("DELETE", "/system/functions", {"functionName": "dogs"}).status == 202
    assert described(gateway, "dogs")["endpoint"] is None, "the registered model stays for the next deployment"
    assert gateway.call("DELETE", "/system/applications/dogs").status == 202


def test_wrong_endpoint_is_refused_when_it_is_deployed(gateway: Serving) -> None:
    def deployed(**annotations: str) -> tuple[int, str]:
        given = {f"gnomon/{key}": value for key, value in annotations.items()}
        return code_of(gateway.call("POST", "/system/functions", {"service": "x", "image": "gnomon/body", "annotations": given}))

    assert deployed(model="app:") == (400, "invalid_application")
    assert deployed(model="app:x", autoscaler="nothing") == (400, "unknown_policy")


def test_restart_keeps_applications_with_what_was_measured(
    gateway: Serving, options: tuple[str, ...], answers: dict[str, list[float]]
) -> None:
    before = {row["id"]: row["latency_ms"] for row in measured(gateway, "faces", 2)}
    gateway.kill()
    gateway.start(*options)
    after = {row["id"]: row["latency_ms"] for row in measured(gateway, "faces", 2)}
    assert after == before, "it was measured again"
    assert answered_by(infer(gateway, "faces", {"accuracy": 0.9}), answers) == "exact"
    assert [function["name"] for function in gateway.call("GET", "/system/functions").json()] == ["faces"]


def test_routes_need_the_login_that_other_control_routes_need(tmp_path: Path) -> None:
    with started(tmp_path / "state", "--basic-auth") as serving:
        assert register(serving, "faces", "quick", accuracy=0.5).status == 401
        assert serving.call("GET", "/system/applications").status == 401
        assert serving.call("DELETE", "/system/applications/faces").status == 401
        password = (tmp_path / "state" / "secrets" / "basic-auth-password").read_text()
        login = urllib3.make_headers(basic_auth=f"admin:{password}")
        answer = serving.call("GET", "/system/applications", **login)
        assert (answer.status, json.loads(answer.data)) == (200, [])


LARGE_SIDE = 64
LARGE_IMAGE = torch.linspace(0.0, 1.0, 3 * LARGE_SIDE * LARGE_SIDE).reshape(1, 3, LARGE_SIDE, LARGE_SIDE).numpy()
ACCURACIES = {"light": 0.6, "heavy": 0.9}
OBJECTIVE_MS = 500.0
FLOORS = (0.8, 0.5)
PHASES_S, WINDOW_S = (20.0, 40.0), 5.0
BUSY = 0.4
"""The share of one instance's saturation rate that the accurate queries have at first, and half of at last."""
CALLERS = 64


@pytest.fixture(scope="module")
def serving_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    models = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    light = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3)).eval()
    for name, module in (("light", light), ("heavy", network())):
        files = capture(module, (torch.ones(2, 3, LARGE_SIDE, LARGE_SIDE),), Description(name, "1", "", {}, ("image",)))
        DirectoryRepository(models).put(name, "1", files)
    with started(tmp_path_factory.mktemp("serve") / "state", "--models", str(models)) as gateway:
        yield gateway


@pytest.mark.slow
def test_windows_are_within_the_objective_and_no_answer_below_its_floor_while_the_load_doubles(serving_both: Serving) -> None:
    client = gnomon.Client(serving_both.url)
    for name, accuracy in ACCURACIES.items():
        client.register_model(name, app="goals", accuracy=accuracy)
    variants = serving_both.call("GET", "/system/applications/goals").json()["variants"]
    heavy = max(variant["saturation_rps"] for variant in variants if variant["model"] == "heavy@1")
    rate_rps = len(FLOORS) * BUSY * heavy
    for floor in FLOORS:
        eventually(
            lambda floor=floor: (
                client.inference_query(LARGE_IMAGE, app="goals", accuracy=floor, latency_ms=OBJECTIVE_MS) is not None
            )
        )

    begun_s = time.monotonic() + 1.0
    lock, answers = threading.Lock(), list[tuple[float, float, float, float]]()

    def ask(number: int, at_s: float) -> None:
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        floor = FLOORS[number % len(FLOORS)]
        answer = client.inference_query(LARGE_IMAGE, app="goals", accuracy=floor, latency_ms=OBJECTIVE_MS)
        latency_s = time.monotonic() - begun_s - at_s
        with lock:
            answers.append((at_s, latency_s, floor, ACCURACIES[answer.variant.partition("@")[0]]))

    times = planned(rate_rps)
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(ask, range(len(times)), times))

    assert len(answers) == len(times)
    assert all(accuracy >= floor for _, _, floor, accuracy in answers)
    windows = [
        [latency_s for at_s, latency_s, _, _ in answers if first <= at_s < first + WINDOW_S]
        for first in range(0, int(sum(PHASES_S)), int(WINDOW_S))
    ]
    within = [sum(1e3 * value <= OBJECTIVE_MS for value in window) >= 0.95 * len(window) for window in windows]
    p95_ms = [round(1e3 * sorted(window)[int(0.95 * len(window))]) for window in windows]
    assert sum(within) >= 0.95 * len(within), f"{rate_rps:.1f}, then {2 * rate_rps:.1f} queries/s; P95 of windows in ms: {p95_ms}"


def planned(rate_rps: float) -> list[float]:
    """The times of queries at an even rate, which doubles for the second phase."""
    first_s, second_s = PHASES_S
    before = [number / rate_rps for number in range(int(first_s * rate_rps))]
    return before + [first_s + number / (2.0 * rate_rps) for number in range(int(second_s * 2.0 * rate_rps))]
