"""A model's inference changes nothing: when its instance dies, it is run once more, and its caller sees nothing of it."""

from __future__ import annotations

import asyncio
import io

import aiohttp
import pytest
import torch
from PIL import Image

from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.faults.callers import until
from tests.integration.faults.conftest import Faulty, freeze, kill

pytestmark = pytest.mark.torch
DETAILS = {
    "labels": ["red", "green", "blue"],
    "preprocess": {"size": 8, "crop_fraction": 1.0, "interpolation": "bicubic", "mean": [0, 0, 0], "std": [255, 255, 255]},
}


class Colours(torch.nn.Module):
    """Which colour there is most of."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.mean((2, 3))


@pytest.fixture
def serving(faulty: Faulty) -> Faulty:
    description = Description("colours", "1", "image-classification", DETAILS, ("image",), ("logits",))
    files = capture(Colours().eval(), (torch.ones(2, 3, 8, 8),), description)
    DirectoryRepository(faulty.state / "models").put("colours", "1", files)
    return faulty


def green() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (0, 255, 0)).save(stream, "PNG")
    return stream.getvalue()


async def test_an_inference_whose_instance_dies_is_run_once_more(serving: Faulty) -> None:
    annotations = {"gnomon/model": "colours@1", "gnomon/autoscaler": "fixed", "gnomon/max-batch": "4"}
    serving.call("POST", "/system/functions", {"service": "colours", "image": "gnomon/body", "annotations": annotations})
    await until(lambda: serving.ready("colours") == 1, "not ready")
    pixels = [0.0] * 64 + [1.0] * 64 + [0.0] * 64
    tensors = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": pixels}]}
    [pid] = serving.pids("colours")
    freeze(pid)
    async with aiohttp.ClientSession(serving.url) as session, asyncio.TaskGroup() as group:

        async def photograph() -> str:
            async with session.post("/function/colours", data=green()) as answer:
                return await answer.text()

        async def inference() -> list[float]:
            async with session.post("/v2/models/colours/infer", json=tensors) as answer:
                document = await answer.json()
                return list(document["outputs"][0]["data"])

        # Whichever comes first is with the frozen instance when that is killed; the others wait.
        photographs = [group.create_task(photograph()) for _ in range(2)]
        await until(lambda: serving.in_flight("colours") == 2, "not let in")
        kill(pid)
        await until(lambda: all(task.done() for task in photographs), "not answered")
        [pid] = serving.pids("colours")
        freeze(pid)
        inferences = [group.create_task(inference()) for _ in range(2)]
        await until(lambda: serving.in_flight("colours") == 2, "not let in")
        kill(pid)
    assert all('"green"' in task.result() for task in photographs), [task.result() for task in photographs]
    assert [task.result() for task in inferences] == [[0.0, 1.0, 0.0]] * 2
