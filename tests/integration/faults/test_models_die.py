"""A model's inference changes nothing: when its instance dies, it is run once more, and its caller sees nothing of it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Coroutine
from pathlib import Path

import aiohttp
import pytest
import torch
from PIL import Image

from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.faults.callers import until
from tests.integration.faults.conftest import Faulty, kill

pytestmark = pytest.mark.torch
SIDE = 64
DETAILS = {
    "labels": ["red", "green", "blue"],
    "preprocess": {"size": SIDE, "crop_fraction": 1.0, "interpolation": "bicubic", "mean": [0, 0, 0], "std": [255, 255, 255]},
}
BUSY_TICKS = 5
"""Of a hundredth of a second each: by then it has its batch and works on it. The whole takes a second or so."""


class Slow(torch.nn.Module):
    """Which colour there is most of, after a lot of work."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Conv2d(3, 256, 3, padding=1)
        self.work = torch.nn.Sequential(*(torch.nn.Conv2d(256, 256, 3, padding=1) for _ in range(3)))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.mean((2, 3)) + 1e-9 * self.work(self.wide(image)).mean()


@pytest.fixture
def serving(faulty: Faulty) -> Faulty:
    description = Description("slow", "1", "image-classification", DETAILS, ("image",), ("logits",))
    files = capture(Slow().eval(), (torch.ones(2, 3, SIDE, SIDE),), description)
    DirectoryRepository(faulty.state / "models").put("slow", "1", files)
    return faulty


def green() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (0, 255, 0)).save(stream, "PNG")
    return stream.getvalue()


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def test_an_inference_whose_instance_dies_at_work_is_run_once_more(serving: Faulty) -> None:
    annotations = {"gnomon/model": "slow@1", "gnomon/autoscaler": "fixed"}
    serving.call("POST", "/system/functions", {"service": "slow", "image": "gnomon/body", "annotations": annotations})
    pixels = [channel for channel in (0.0, 1.0, 0.0) for _ in range(SIDE * SIDE)]
    tensors = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, SIDE, SIDE], "data": pixels}]}
    async with aiohttp.ClientSession(serving.url) as session:

        async def photograph() -> str:
            async with session.post("/function/slow", data=green()) as answer:
                return str((await answer.json())["label"])

        async def inference() -> str:
            async with session.post("/v2/models/slow/infer", json=tensors) as answer:
                logits = (await answer.json())["outputs"][0]["data"]
                return DETAILS["labels"][logits.index(max(logits))]

        assert await killed_at_work(serving, photograph) == "green"
        assert await killed_at_work(serving, inference) == "green"


async def killed_at_work(serving: Faulty, ask: Callable[[], Coroutine[None, None, str]]) -> str:
    """What the caller hears when the only instance is killed while it works for it."""
    await until(lambda: serving.ready("slow") == 1, "not ready")
    [pid] = serving.pids("slow")
    idle = cpu_ticks(pid)
    running = asyncio.create_task(ask())
    await until(lambda: cpu_ticks(pid) > idle + BUSY_TICKS, "it never worked")
    assert not running.done()
    kill(pid)
    return await running
