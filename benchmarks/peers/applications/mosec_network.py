"""Mosec serving a network: a float32 image as raw bytes in, its logits out. Set NETWORK, ENGINE, ONNX, BATCH and WAIT_MS."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from mosec import Server, Worker
from networks import load

BATCH = int(os.environ["BATCH"])


class Application(Worker):
    """A batch of images is stacked, computed at once and taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = load(os.environ["NETWORK"], os.environ["ENGINE"], Path(os.environ["ONNX"]))

    def deserialize(self, data: bytes) -> Any:
        return np.frombuffer(data, np.float32).reshape(3, 224, 224)

    def forward(self, data: Any) -> Any:
        return list(self.predict(np.stack(data)))

    def serialize(self, data: Any) -> bytes:
        return bytes(data.tobytes())


if __name__ == "__main__":
    server = Server()
    server.append_worker(Application, num=1, max_batch_size=BATCH, max_wait_time=int(os.environ["WAIT_MS"]))
    server.run()
