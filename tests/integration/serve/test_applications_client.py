"""The Python client and `gnomon app` against `gnomon serve`, with two small models under the names of INFaaS's Figure 2."""

from __future__ import annotations

import doctest
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnomon
from gnomon_core.errors import GnomonError
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import GNOMON, Serving, started
from tests.refusals import refused

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
FEATURES, CLASSES = 6, 4
WIDE = 150_000
"""Numbers of a sample of which a gateway takes thirteen at once."""


class Scaled(torch.nn.Module):
    """Scores that are the input's first values, each times a weight: with weights of 1 the largest value's place is the class."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor(weights))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values[:, :CLASSES] * self.weights


class Labelled(Scaled):
    """A label and the scores behind it, as classifiers of scikit-learn answer."""

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        scores = super().forward(values)
        return {"label": scores.argmax(1), "probabilities": scores}


class Sum(torch.nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.sum(1)


TABLE = torch.nn.Sequential(
    torch.nn.Embedding.from_pretrained(torch.arange(10.0 * CLASSES).reshape(10, CLASSES)), torch.nn.Flatten()
)
"""Scores by the number of a row in a table, which has 0, 1, 2, 3 in its first row, 4, 5, 6, 7 in the next, …"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    models = tmp_path_factory.mktemp("models")
    ones = [1.0] * CLASSES
    for name, model, samples, given in (
        ("resnet50", Scaled(ones), torch.ones(2, FEATURES), "values"),
        ("mobilenet", Scaled([1.0, 1.0, 1.0, 0.0]), torch.ones(2, FEATURES), "values"),
        ("labelled", Labelled(ones), torch.ones(2, FEATURES), "values"),
        ("sum", Sum(), torch.ones(2, FEATURES), "values"),
        ("wide", Scaled(ones), torch.ones(2, WIDE), "pixels"),
        ("table", TABLE, torch.ones(2, 1, dtype=torch.int64), "codes"),
    ):
        DirectoryRepository(models).put(name, "1", capture(model.eval(), (samples,), Description(name, "1", "", {}, (given,))))
    with started(tmp_path_factory.mktemp("serve") / "state", "--models", str(models)) as gateway:
        yield gateway


@pytest.fixture
def client(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> gnomon.Client:
    monkeypatch.setenv("OPENFAAS_URL", serving.url)
    return gnomon.Client()


def test_figure_2_of_the_paper_runs_as_the_package_shows_it(client: gnomon.Client) -> None:
    image = [[0.1, 0.4, 0.2, 0.3, 0.0, 0.0]]
    result = doctest.testmod(gnomon, extraglobs={"image": image}, optionflags=doctest.ELLIPSIS, raise_on_error=False)
    assert (result.failed, result.attempted >= 7) == (0, True)


def test_validation_set_gives_each_variant_the_accuracy_that_it_shows(client: gnomon.Client) -> None:
    samples = np.random.default_rng(1).random((40, FEATURES), dtype=np.float32)
    labels = samples[:, :CLASSES].argmax(1).tolist()
    share = sum(label != CLASSES - 1 for label in labels) / len(labels)
    assert 0.5 < share < 1.0, "mobilenet answers the last class never"
    assert client.register_model("resnet50", app="digits", validation=(samples, labels)).accuracy == 1.0
    assert client.register_model("mobilenet@1", app="digits", validation=(samples, labels)).accuracy == pytest.approx(share)
    accuracies = {variant.model: variant.accuracy for variant in client.model_info("digits").variants}
    assert accuracies == {"resnet50@1": 1.0, "mobilenet@1": pytest.approx(share)}
    answer = client.inference_query(samples[:3], app="digits", accuracy=share + 0.01)
    assert answer.variant.startswith("resnet50@1/")
    assert isinstance(answer.output, np.ndarray)
    np.testing.assert_allclose(answer.output, samples[:3, :CLASSES], rtol=1e-6)


def test_validation_goes_by_the_scores_behind_a_label(client: gnomon.Client) -> None:
    samples = np.random.default_rng(1).random((20, FEATURES), dtype=np.float32)
    labels = samples[:, :CLASSES].argmax(1).tolist()
    assert client.register_model("labelled", app="labels", validation=(samples, labels)).accuracy == 1.0
    with refused(400, "invalid_validation", message="one number for each sample"):
        client.register_model("sum", app="sums", validation=(samples, labels))


def test_validation_set_of_large_samples_is_sent_in_requests_that_a_gateway_takes(client: gnomon.Client) -> None:
    samples = np.zeros((20, WIDE), np.float32)
    samples[np.arange(20), np.arange(20) % CLASSES] = 1.0
    labels = (np.arange(20) % CLASSES).tolist()
    assert client.register_model("wide", app="photos", validation=(samples, labels)).accuracy == 1.0


def test_list_of_arrays_and_list_of_numbers_of_numpy_are_samples_as_an_array_is(client: gnomon.Client) -> None:
    client.register_model("resnet50", app="listed", accuracy=0.7)
    samples = np.arange(2.0 * FEATURES, dtype=np.float32).reshape(2, FEATURES)
    for same in (list(samples), [list(row) for row in samples]):
        output = client.inference_query(same, app="listed").output
        np.testing.assert_allclose(output, samples[:, :CLASSES])
    with refused(400, "invalid_inputs", message="values"):
        client.inference_query([samples[0], samples[0, :3]], app="listed")


def test_array_whose_numbers_would_be_changed_is_refused(client: gnomon.Client) -> None:
    client.register_model("table", app="codes", accuracy=0.7)
    assert client.inference_query(np.array([[2.0]]), app="codes").output.tolist() == [[8.0, 9.0, 10.0, 11.0]]
    for wrong in ([[2.5]], [[np.nan]], [[1e30]]):
        with refused(400, "invalid_inputs", message="do not fit INT64"):
            client.inference_query(np.array(wrong), app="codes")


def test_client_follows_when_its_application_has_other_inputs(serving: Serving, client: gnomon.Client) -> None:
    client.register_model("resnet50", app="moved", accuracy=0.7)
    assert client.inference_query([[0.0] * FEATURES], app="moved").variant
    other = gnomon.Client(serving.url)
    assert command(serving, "remove", "moved").returncode == 0
    other.register_model("table", app="moved", accuracy=0.7)
    with refused(400, message="the model takes codes"):
        client.inference_query([[0.0] * FEATURES], app="moved")
    assert client.inference_query([[2]], app="moved").output == [[8.0, 9.0, 10.0, 11.0]]


def test_refusals_of_the_gateway_are_errors_with_their_reason(client: gnomon.Client) -> None:
    client.register_model("resnet50", app="small", accuracy=0.7)
    values = {"values": [[0.0] * FEATURES]}
    with pytest.raises(gnomon.UnsatisfiedError) as caught:
        client.inference_query(values, app="small", accuracy=0.71)
    assert caught.value.nearest.startswith("resnet50@1/")
    with refused(400, "http_400", message="0.7 is 70 %"):
        client.inference_query(values, app="small", accuracy=71)
    with refused(404, "model_not_found"):
        client.register_model("nothing", app="small", accuracy=0.7)
    with refused(404, "application_not_found"):
        client.model_info("nobody")
    with refused(400, "two_accuracies"):
        client.register_model("resnet50", app="small", accuracy=0.7, validation=([[0.0] * FEATURES], [0]))
    with refused(503, "gateway_unreachable"):
        gnomon.Client("http://127.0.0.1:9").model_info("small")
    with pytest.raises(GnomonError, match="no address"):
        gnomon.Client("ftp://host")


@pytest.mark.parametrize(
    "validation",
    [
        ([], []),
        ([[0.0] * FEATURES], []),
        ([[0.0] * FEATURES], ["0"]),
        ([[0.0] * FEATURES], [-1]),
        ([[0.0] * FEATURES], [0.5]),
        (None, None),
        [1],
    ],
)
def test_set_that_validates_nothing_is_refused_before_the_model_is_registered(client: gnomon.Client, validation: Any) -> None:
    with refused(400, "invalid_validation"):
        client.register_model("resnet50", app="unvalidated", validation=validation)
    with refused(404, "application_not_found"):
        client.model_info("unvalidated")


def test_model_that_cannot_be_validated_does_not_stay_registered(client: gnomon.Client) -> None:
    client.register_model("resnet50", app="half", accuracy=0.7)
    of_other_shape = (np.zeros((3, FEATURES + 1), np.float32), [0, 1, 2])
    for model in ("resnet50", "mobilenet"):
        with refused(400, "http_400", message="the model takes"):
            client.register_model(model, app="half", validation=of_other_shape)
    with pytest.raises(TypeError, match="JSON"):
        client.register_model("mobilenet", app="half", validation=([[object()] * FEATURES], [0]))
    assert [(one.model, one.accuracy) for one in client.model_info("half").models] == [("resnet50@1", 0.7)]


def test_numbers_of_numpy_are_numbers_and_other_values_are_refused(client: gnomon.Client) -> None:
    client.register_model("resnet50", app="typed", accuracy=np.float32(0.5))
    values = [[0.0] * FEATURES]
    assert client.inference_query(values, app="typed", accuracy=np.float64(0.5), latency_ms=np.int64(60_000)).variant
    with refused(400, "invalid_constraint", message="latency_ms"):
        client.inference_query(values, app="typed", latency_ms=[1])  # type: ignore[arg-type]
    for name in ("resnet50\r\nX-Other: 1", "Ж"):
        with refused(400, "invalid_constraint", message="model"):
            client.inference_query(b"image", app="typed", model=name)
    with refused(400, "invalid_inputs", message="values"):
        client.inference_query(np.array([["a"] * FEATURES]), app="typed")


def test_less_accuracy_that_a_query_accepts_is_said_in_its_answer(client: gnomon.Client) -> None:
    client.register_model("resnet50", app="least", accuracy=0.7)
    values = [[0.0] * FEATURES]
    answer = client.inference_query(values, app="least", accuracy=0.8, accuracy_floor=0.6)
    assert (answer.degraded_accuracy, answer.nearest) == (0.7, False)
    assert client.inference_query(values, app="least", accuracy=0.7, accuracy_floor=0.6).degraded_accuracy is None
    with refused(400, "http_400", message="send both"):
        client.inference_query(values, app="least", accuracy_floor=0.6)


def test_client_goes_on_after_the_gateway_has_restarted(tmp_path: Path, serving: Serving) -> None:
    with started(tmp_path / "state") as gateway:
        client = gnomon.Client(gateway.url)
        with refused(404):
            client.model_info("nobody")
        port = gateway.url.rpartition(":")[2]
        gateway.stop()
        gateway.start("--port", port)
        with refused(404):
            client.model_info("nobody")


def command(serving: Serving, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GNOMON, "app", *arguments, "-g", serving.url], capture_output=True, text=True, timeout=120, check=False
    )


def test_command_line_adds_lists_describes_and_removes(serving: Serving, client: gnomon.Client) -> None:
    added = command(serving, "add", "faces", "resnet50", "--accuracy", "0.76")
    assert added.returncode == 0, added.stderr
    assert "Registered: resnet50@1 for faces" in added.stdout
    client.register_model("mobilenet", app="faces", accuracy=0.66)
    client.register_model("resnet50", app="faces", accuracy=0.76)
    listed = command(serving, "list").stdout
    assert "faces" in listed
    assert "resnet50@1, mobilenet@1" in listed
    described = command(serving, "describe", "faces").stdout
    assert "answers at /v2/models/faces/infer" in described
    assert "resnet50@1/program/fp32/1" in described
    assert "0.76" in described
    assert command(serving, "remove", "faces", "mobilenet").returncode == 0
    assert [model.model for model in client.model_info("faces").models] == ["resnet50@1"]
    assert command(serving, "remove", "faces").returncode == 0
    unknown = command(serving, "describe", "faces")
    assert unknown.returncode == 1
    assert "There is no application 'faces'" in unknown.stderr
    assert command(serving, "add", "faces", "resnet50", "--accuracy", "70").returncode == 2
