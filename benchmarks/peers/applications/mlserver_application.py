"""MLServer serving one of the workloads over its V2 protocol. Environment: WORKLOAD."""

import base64
import os

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from workloads import MAKERS

WORKLOAD = os.environ["WORKLOAD"]


class Application(MLModel):
    """INT64 `x` of shape [1] in, FP64 `y` out; for `photo` the input is the JPEG as base64 in a BYTES tensor."""

    async def load(self) -> bool:
        self.work = MAKERS[WORKLOAD]()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensor = payload.inputs[0]
        if WORKLOAD == "photo":
            xs = [base64.b64decode(item) for item in tensor.data]
        else:
            xs = NumpyCodec.decode_input(tensor).ravel().tolist()
        ys = np.array(self.work(xs), dtype=np.float64).reshape(-1, 1)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", ys)])
