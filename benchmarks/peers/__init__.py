"""The systems that Gnomon is measured beside, each in a Python environment of its own, made with uv from pinned requirements.

    benchmarks/.environments/mosec/        and its requirements in benchmarks/peers/mosec.txt

Mosec is a Rust server with Python workers, one process each, and dynamic batching. MLServer is FastAPI over uvicorn with a worker
process for the model, adaptive batching, and the V2 protocol as its body format. PyTorch comes in the same build that Gnomon has.
An environment whose requirements have changed is made anew.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import uv

from benchmarks.programs import Endpoint, Program, free_port, running, step
from benchmarks.workloads import body_of

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".environments"
STAMP = ".made-from"


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is missing.

    Raises:
        subprocess.CalledProcessError: uv could not make it; it has said why.

    """
    requirements = HERE / f"{peer}.txt"
    folder = ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    build = torch_build()
    digest = hashlib.sha256(f"{sys.version} {build} {requirements.read_text()}".encode()).hexdigest()
    stamp = folder / STAMP
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    step(f"making the environment of {peer} in {folder}: with PyTorch, up to 3 GB to download, seconds where uv has it already")
    shutil.rmtree(folder, ignore_errors=True)
    tool = uv.find_uv_bin()
    subprocess.run([tool, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)], check=True)
    backend = ["--torch-backend", build] if build else []
    install = [tool, "pip", "install", "--quiet", "--python", str(python), "--compile-bytecode", *backend]
    subprocess.run([*install, "--requirements", str(requirements)], check=True)
    stamp.write_text(digest)
    return python


def torch_build() -> str:
    """`cpu` where ours is PyTorch's CPU build; empty for the default one."""
    return "cpu" if importlib.metadata.version("torch").endswith("+cpu") else ""


@contextlib.contextmanager
def mosec(workload: str, folder: Path, *, batch: int, wait_ms: int = 0, deadline_s: float = 30.0) -> Iterator[Endpoint]:
    """Serve one workload with one worker of one thread. The server gives up a request after `deadline_s`."""
    port = free_port()
    command = [str(python_of("mosec")), str(HERE / "applications" / "mosec_application.py")]
    options = ["--address", "127.0.0.1", "--port", str(port), "--timeout", f"{deadline_s * 1e3:.0f}", "--log-level", "warning"]
    environment = {
        "WORKLOAD": workload,
        "BATCH": str(batch),
        "WAIT_MS": str(wait_ms),
        "PYTHONPATH": str(HERE.parent),
        "OMP_NUM_THREADS": "1",
    }
    with running([*command, *options], folder, environment) as program:
        program.wait_ready(f"http://127.0.0.1:{port}/")
        endpoint = Endpoint.of("mosec", f"http://127.0.0.1:{port}/inference", workload)
        endpoint.wait_for_answer()
        yield endpoint


@contextlib.contextmanager
def network(
    peer: str, name: str, folder: Path, *, engine: str, onnx_file: Path, body: bytes, batch: int, wait_ms: int = 0
) -> Iterator[tuple[Endpoint, Program]]:
    """Serve a network by Mosec or LitServe, raw tensors in and out, with one worker of one thread. It may be paused."""
    port = free_port()
    command = [str(python_of(peer)), str(HERE / "applications" / f"{peer}_network.py")]
    if peer == "mosec":
        command += ["--address", "127.0.0.1", "--port", str(port), "--timeout", "60000", "--log-level", "warning"]
    environment = {
        "NETWORK": name,
        "ENGINE": engine,
        "ONNX": str(onnx_file),
        "BATCH": str(batch),
        "WAIT_MS": str(wait_ms),
        "PORT": str(port),
        "PYTHONPATH": str(HERE / "applications"),
        "OMP_NUM_THREADS": "1",
    }
    with running(command, folder, environment) as program:
        url = f"http://127.0.0.1:{port}/{'inference' if peer == 'mosec' else 'predict'}"
        sent, kind = (body, "application/octet-stream") if peer == "mosec" else form(body)
        endpoint = Endpoint(peer, url, sent, {"Content-Type": kind})
        endpoint.wait_for_answer()
        try:
            yield endpoint, program
        finally:
            program.resume()


def form(image: bytes) -> tuple[bytes, str]:
    """A form with one file, and its content type."""
    head = b'--gnomon\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n'
    return (
        head + b"Content-Type: application/octet-stream\r\n\r\n" + image + b"\r\n--gnomon--\r\n",
        "multipart/form-data; boundary=gnomon",
    )


@contextlib.contextmanager
def mlserver(workload: str, folder: Path, *, batch: int, wait_ms: int = 0) -> Iterator[Endpoint]:
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
    python = python_of("mlserver")
    with running([str(python.parent / "mlserver"), "start", str(folder)], folder, environment) as program:
        program.wait_ready(f"http://127.0.0.1:{port}/v2/models/{workload}/ready")
        endpoint = Endpoint("mlserver", f"http://127.0.0.1:{port}/v2/models/{workload}/infer", tensor_body(workload))
        endpoint.wait_for_answer()
        yield endpoint


def tensor_body(workload: str) -> bytes:
    """The workload's input as the V2 protocol says it."""
    if workload == "photo":
        tensor = {"datatype": "BYTES", "data": [base64.b64encode(body_of(workload)).decode()]}
    else:
        tensor = {"datatype": "INT64", "data": json.loads(body_of(workload))["x"]}
    return json.dumps({"inputs": [{"name": "x", "shape": [1], **tensor}]}).encode()
