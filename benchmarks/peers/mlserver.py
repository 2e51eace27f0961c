"""MLServer: FastAPI over uvicorn, a worker process for the model, adaptive batching, and the V2 protocol as its body format."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.environments import HERE, python_of
from benchmarks.programs import Endpoint, free_port, running
from benchmarks.workloads import body_of

NAME = "mlserver"


@contextlib.contextmanager
def serving(workload: str, folder: Path, *, batch: int, wait_ms: int = 0) -> Iterator[Endpoint]:
    """Serve one workload with one worker process of one thread."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": free_port(),
        "metrics_port": free_port(),
        "parallel_workers": 1,
        "debug": False,
        "use_structured_logging": False,
    }
    model = {
        "name": workload,
        "implementation": "mlserver_application.Application",
        "max_batch_size": batch,
        "max_batch_time": wait_ms / 1e3,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    environment = {
        "WORKLOAD": workload,
        "PYTHONPATH": f"{HERE.parent}:{HERE / 'applications'}",
        "OMP_NUM_THREADS": "1",
        "MLSERVER_LOGGING_SETTINGS": "",
    }
    python = python_of(NAME)
    with running([str(python.parent / "mlserver"), "start", str(folder)], folder, environment) as program:
        program.wait_ready(f"http://127.0.0.1:{port}/v2/models/{workload}/ready")
        endpoint = Endpoint(NAME, f"http://127.0.0.1:{port}/v2/models/{workload}/infer", tensor_body(workload))
        endpoint.wait_for_answer()
        yield endpoint


def tensor_body(workload: str) -> bytes:
    """The workload's input as the V2 protocol says it."""
    if workload == "photo":
        tensor = {"datatype": "BYTES", "data": [base64.b64encode(body_of(workload)).decode()]}
    else:
        tensor = {"datatype": "INT64", "data": json.loads(body_of(workload))["x"]}
    return json.dumps({"inputs": [{"name": "x", "shape": [1], **tensor}]}).encode()
