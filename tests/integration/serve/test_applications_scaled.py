"""The members of an application follow its queries: cheap variants, more instances under load, none when nothing is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gnomon
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import Serving, started
from tests.kubernetes.measured import network
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SIDE = 64
IMAGE = torch.linspace(0.0, 1.0, 3 * SIDE * SIDE).reshape(1, 3, SIDE, SIDE).numpy()
HEAVIER = 3
"""The heavy model's image is so many times larger: its instance, and not what asks it, is what a few callers wait for."""
IDLE_S = 3
IDLE = {"com.openfaas.scale.zero-duration": f"{IDLE_S}s", "com.openfaas.scale.max": "3"}


def pooled() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3)).eval()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    models = tmp_path_factory.mktemp("models")
    heavy = torch.nn.Sequential(torch.nn.Upsample(scale_factor=HEAVIER), network()).eval()
    for name, module in (("light", pooled()), ("heavy", heavy)):
        files = capture(module, (torch.ones(2, 3, SIDE, SIDE),), Description(name, "1", "", {}, ("image",)))
        DirectoryRepository(models).put(name, "1", files)
    with started(tmp_path_factory.mktemp("serve") / "state", "--models", str(models)) as gateway:
        yield gateway


def deployed(serving: Serving, app: str, labels: dict[str, str], **annotations: str) -> gnomon.Client:
    """An application of both models, each measured."""
    given = {"gnomon/model": f"app:{app}", "gnomon/autoscaler": "infaas", "gnomon/max-batch": "2"}
    given |= {f"gnomon/{key}": value for key, value in annotations.items()}
    document = {"service": app, "image": "gnomon/body", "annotations": given, "labels": labels}
    assert serving.call("POST", "/system/functions", document).status == 202
    client = gnomon.Client(serving.url)
    client.register_model("light", app=app, accuracy=0.6)
    client.register_model("heavy", app=app, accuracy=0.9)
    return client


def replicas(serving: Serving, app: str) -> dict[str, int]:
    """The wanted instances of each model's variant."""
    variants: list[dict[str, Any]] = serving.call("GET", f"/system/applications/{app}").json()["variants"]
    return {variant["model"].partition("@")[0]: variant["replicas"] for variant in variants}


def test_members_start_with_queries_and_end_when_nothing_is_asked(serving: Serving) -> None:
    client = deployed(serving, "calm", IDLE)
    eventually(lambda: replicas(serving, "calm") == {"light": 0, "heavy": 0}, "measured variants stay loaded")
    assert client.inference_query(IMAGE, app="calm", accuracy=0.8).variant.startswith("heavy@1/")
    eventually(lambda: replicas(serving, "calm") == {"light": 0, "heavy": 1})
    eventually(lambda: replicas(serving, "calm") == {"light": 0, "heavy": 0}, "an idle application stays loaded")
    decisions = serving.call("GET", "/gnomon/functions/calm/decisions").json()
    assert {decision["policy"] for decision in decisions} == {"infaas"}
    assert [decision["desired"] for decision in decisions][:2] == [0, 1], "the newest first"


def test_load_beyond_one_instance_gets_more_of_the_variant_that_it_needs(serving: Serving) -> None:
    client = deployed(serving, "busy", IDLE)
    stop = threading.Event()
    served: list[str] = []

    def ask() -> None:
        while not stop.is_set():
            served.append(client.inference_query(IMAGE, app="busy", accuracy=0.8).variant)

    callers = [threading.Thread(target=ask) for _ in range(8)]
    for caller in callers:
        caller.start()
    try:
        eventually(lambda: replicas(serving, "busy")["heavy"] >= 2, "eight callers without a pause get one instance")
        assert replicas(serving, "busy")["heavy"] <= 3, "com.openfaas.scale.max is 3"
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert served
    assert serving.call("GET", "/system/applications/busy").json()["workers"]["reason"]
    series = serving.call("GET", "/metrics").data.decode()
    assert 'gnomon_application_workers_wanted{application="busy.openfaas-fn"}' in series
    assert all(variant.startswith("heavy@1/") for variant in served), "each query asks for an accuracy of 0.8"


def test_named_variant_keeps_its_instance_while_it_is_asked_for(serving: Serving) -> None:
    client = deployed(serving, "named", IDLE)
    variant = next(variant.id for variant in client.model_info("named").variants if variant.model == "heavy@1")
    client.inference_query(IMAGE, app="named", variant=variant)
    first = instances(serving, "named", "heavy")
    end_s = time.monotonic() + IDLE_S + 2.0
    while time.monotonic() < end_s:
        assert client.inference_query(IMAGE, app="named", variant=variant).variant == variant
        time.sleep(0.5)
    assert instances(serving, "named", "heavy") == first, "its instance was replaced"


def instances(serving: Serving, app: str, model: str) -> list[str]:
    """The ids of the instances of a model's variant."""
    member = next(
        variant["function"]
        for variant in serving.call("GET", f"/system/applications/{app}").json()["variants"]
        if variant["model"] == f"{model}@1"
    )
    return [body["id"] for body in serving.call("GET", f"/gnomon/functions/{member}").json()["bodies"]]


def test_label_keeps_an_instance_while_nothing_is_asked(serving: Serving) -> None:
    deployed(serving, "warm", IDLE | {"com.openfaas.scale.min": "1"})

    def there() -> list[str]:
        return [instance for model in ("light", "heavy") for instance in instances(serving, "warm", model)]

    eventually(lambda: sum(replicas(serving, "warm").values()) == 1 == len(there()), "measured variants stay loaded")
    kept = there()
    time.sleep(IDLE_S + 2.0)
    assert there() == kept


def test_other_policy_scales_each_member_by_itself(serving: Serving) -> None:
    client = deployed(serving, "apart", IDLE, autoscaler="kpa")
    assert client.inference_query(IMAGE, app="apart", accuracy=0.8).variant.startswith("heavy@1/")
    member = next(
        variant["function"]
        for variant in serving.call("GET", "/system/applications/apart").json()["variants"]
        if variant["model"] == "heavy@1"
    )
    decisions = serving.call("GET", f"/gnomon/functions/{member}/decisions").json()
    assert {decision["policy"] for decision in decisions} == {"kpa"}


def test_policy_of_applications_is_refused_for_a_function(serving: Serving) -> None:
    document = {"service": "f", "image": "gnomon/body", "annotations": {"gnomon/model": "light", "gnomon/autoscaler": "infaas"}}
    answer = serving.call("POST", "/system/functions", document)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "policy_of_applications")
    assert "infaas" in [row["name"] for row in serving.call("GET", "/gnomon/policies").json()["scaling"]]
