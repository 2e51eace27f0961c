"""Bodies and Shadows on other engines than the layer program's: real instances, which answer as the model does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnomon_core.engines import BF16, GRAPH_FILES, PIECES_TOLERANCE, cpu_arithmetic
from gnomon_core.interfaces import ModelEntry
from gnomon_profiler.engines import convert
from gnomon_runtime.engine.graphs import GraphModel
from tests.integration.pairs.conftest import HALVES
from tests.pair_harness import Model, Nursery, Task, change, join, load

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
pytest.importorskip("openvino", reason="the extra openvino is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnxruntime is not installed")


@pytest.fixture(scope="module")
def converted(models: Callable[[str], Model]) -> Model:
    """A captured network with its graphs beside it."""
    model = models("resnet18")
    folder, signature = model.folder, model.signature
    entry = ModelEntry(
        "resnet18", "1", signature, folder / "program.json", folder / "weights.safetensors", {}, folder / "layers.json"
    )
    assert convert(entry, GRAPH_FILES, folder, lambda _: None) == {}  # the inputs of int8's ranges are random
    return model


NEEDS_BF16 = pytest.mark.skipif(BF16 not in cpu_arithmetic(), reason="this CPU has no bf16 arithmetic")


@pytest.mark.parametrize("engine", [pytest.param(name, marks=NEEDS_BF16) if BF16 in name else name for name in GRAPH_FILES])
def test_pair_on_an_engine_answers_as_the_model_and_survives_a_change_of_blocks(
    converted: Model, nursery: Nursery, expected: Callable[[Model, Tensor], Tensor], engine: str
) -> None:
    model = Model(converted.folder, engine=engine)
    count = len(model.layers.blocks)
    whole = [block for block in range(count) if model.layers.blocks[block].splittable]
    first, second = task(model, whole[: len(whole) // 2]), task(model, whole)
    x = torch.randn(6, *model.signature.inputs[0].shape, generator=torch.Generator().manual_seed(2))
    body, shadow = nursery.body(model), nursery.empty()
    try:
        assert load(shadow, first)["say"] == "registered"
        join(body, shadow, first)
        for pairing in (first, second):
            if pairing is second:
                change(body, shadow, first, second)
            answer, timings = body.ask(x)
            # In a lower precision a pair answers as the whole graph does, in bf16 nearly, and not as the program does.
            files = {name: model.folder / name for name in GRAPH_FILES[engine]}
            whole = [GraphModel(engine, model.folder / "program.json", files, 1).run([x])[0]] if "-" in engine else []
            reference = whole[0] if whole else expected(Model(model.folder), x)
            tolerance = PIECES_TOLERANCE if BF16 in engine else 1e-4
            assert (answer - reference).abs().max() <= tolerance * reference.abs().max()
            assert [timing["outcome"] for timing in timings] == ["answered"] * len(model.layers.runs(pairing.blocks))
            assert sum(timing["samples"] for timing in timings) > 0
    finally:
        for child in (body, shadow):
            child.end()


def task(model: Model, blocks: list[int]) -> Task:
    return Task(model, blocks, HALVES, [[10_000.0] * 8] * len(model.layers.runs(blocks)))
