"""A text model of one captured length answers sequences of every length up to it as the model itself does, in shared batches."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from gnomon_profiler.add import add_from
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import Serving, started
from tests.small_transformers import bert_config
from tests.waiting import eventually

transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
LENGTH, VOCABULARY = 16, 60


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = bert_config(vocab_size=VOCABULARY, num_labels=3)
    return transformers.BertForTokenClassification(config).eval()


@pytest.fixture(scope="module")
def serving(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("bert")
    model.save_pretrained(folder / "saved")
    repository = DirectoryRepository(folder / "models")
    add_from(repository, "words", str(folder / "saved"), length=LENGTH)
    with started(folder / "state", "--models", str(folder / "models")) as gateway:
        annotations = {"gnomon/model": "words", "gnomon/max-batch": "4"}
        assert gateway.deploy("words", "", image="gnomon/body", annotations=annotations).status == 202
        eventually(lambda: gateway.call("GET", "/v2/models/words/ready").status == 200)
        yield gateway


def ask(serving: Serving, tokens: torch.Tensor) -> Any:
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    inputs = [
        {"name": name, "shape": list(data.shape), "datatype": "INT64", "data": data.flatten().tolist()}
        for name, data in given.items()
    ]
    return serving.call("POST", "/v2/models/words/infer", {"inputs": inputs})


def test_every_length_is_answered_as_the_model_answers_it_alone(serving: Serving, model: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(1, VOCABULARY, (1 + length % 3, length), generator=generator) for length in range(1, LENGTH + 1)]
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda tokens: ask(serving, tokens), texts))
    for tokens, answer in zip(texts, answers, strict=True):
        assert answer.status == 200, answer.data
        (output,) = answer.json()["outputs"]
        with torch.inference_mode():
            right = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
        assert output["shape"] == list(right.shape)
        torch.testing.assert_close(torch.tensor(output["data"]).reshape(right.shape), right, rtol=1e-3, atol=1e-4)


def test_metadata_says_that_any_length_is_taken_and_longer_ones_are_refused(serving: Serving) -> None:
    metadata = serving.call("GET", "/v2/models/words").json()
    assert [tensor["shape"] for tensor in metadata["inputs"]] == [[-1, -1], [-1, -1]]
    assert [tensor["shape"] for tensor in metadata["outputs"]] == [[-1, -1, 3]]
    refused = ask(serving, torch.ones(1, LENGTH + 1, dtype=torch.int64))
    assert refused.status == 400
    assert f"1 to {LENGTH} tokens" in refused.json()["error"]
