"""LitServe serving a network, as `mosec_network` does, but the image is a form's file: LitServe takes JSON and forms.

Environment: NETWORK, ENGINE, ONNX, BATCH, WAIT_MS, PORT.
"""

import os
from pathlib import Path
from typing import Any

import litserve
import numpy as np
from fastapi import Request, Response
from networks import load

BATCH = int(os.environ["BATCH"])


class Application(litserve.LitAPI):
    """A batch of images is stacked, computed at once and taken apart."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - the signature that LitServe calls
        self.network = load(os.environ["NETWORK"], os.environ["ENGINE"], Path(os.environ["ONNX"]))

    def decode_request(self, request: Request) -> Any:
        return np.frombuffer(request["image"].file.read(), np.float32).reshape(3, 224, 224)

    def predict(self, batch: Any) -> Any:
        return self.network(batch)

    def encode_response(self, output: Any) -> Response:
        return Response(output.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    api = Application(max_batch_size=BATCH, batch_timeout=int(os.environ["WAIT_MS"]) / 1e3)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=int(os.environ["PORT"]), generate_client_file=False, log_level="warning")
