"""Mosec serving one of the workloads. Environment: WORKLOAD, BATCH, WAIT_MS."""

import json
import os
from typing import Any

from mosec import Server, Worker
from workloads import MAKERS

WORKLOAD = os.environ["WORKLOAD"]
BATCH = int(os.environ["BATCH"])


class Application(Worker):
    """JSON `{"x": [7]}` in and `{"y": [7]}` out; for `photo` the body is the JPEG itself."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = MAKERS[WORKLOAD]()

    def deserialize(self, data: bytes) -> Any:
        return data if WORKLOAD == "photo" else json.loads(data)["x"][0]

    def forward(self, data: Any) -> Any:
        if BATCH == 1:
            return {"y": self.predict([data])}
        return [{"y": [y]} for y in self.predict(data)]

    def serialize(self, data: Any) -> bytes:
        # Mosec's own indents, which json does in Python and not in C.
        return json.dumps(data).encode()


if __name__ == "__main__":
    server = Server()
    server.append_worker(Application, num=1, max_batch_size=BATCH, max_wait_time=int(os.environ["WAIT_MS"]))
    server.run()
