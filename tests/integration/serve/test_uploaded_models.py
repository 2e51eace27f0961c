"""`gnomon models add -g`: a model is captured here and served there, and a broken upload leaves nothing there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from gnomon_core.model_files import Archive
from gnomon_core.process_memory import peak_bytes
from gnomon_core.program import Operation, Program, Value, Weight, dump_program
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import GNOMON, Serving
from tests.waiting import eventually

CAPTURE = """
from pathlib import Path
import torch
from gnomon_profiler.extractor import Description, capture
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
Path("captured").mkdir()
for name, data in capture(model, [torch.zeros(2, 4)], Description("flowers", input_names=("sizes",))).items():
    Path("captured", name).write_bytes(data)
print(model(torch.tensor([[5.1, 3.5, 1.4, 0.2]])).tolist())
"""
BODY = {"image": "gnomon/body:latest", "process": "python -m gnomon_runtime.serve"}
QUERY = {"inputs": [{"name": "sizes", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}]}
LIMIT_S = 120.0


def command(client: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`gnomon` on another machine, as far as files go: in a folder of its own."""
    return subprocess.run(
        [*GNOMON, *arguments],
        cwd=client,
        env={**os.environ, "OPENFAAS_CONFIG": str(client / "config"), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture
def client(tmp_path: Path) -> Path:
    folder = tmp_path / "client"
    folder.mkdir()
    return folder


def weighty(folder: Path, megabytes: int, value: float = 0.5) -> DirectoryRepository:
    """A repository with a model of so many megabytes that nobody has to capture: y = x · sum of the weights."""
    size = megabytes << 18
    spec = TensorSpec("x", "FP32", (1,))
    program = Program(
        torch_version="2.6.0",
        schema_sha256="00",
        signature=ModelSignature("weighty", "1", (spec,), (TensorSpec("y", "FP32", (size,)),)),
        inputs=("x",),
        outputs=("y",),
        weights={"w": Weight("FP32", (size,))},
        operations=(Operation("aten.mul.Tensor", (Value("x"), Value("w")), ("y",)),),
    )
    weights = save({"w": np.full(size, value, np.float32)})
    repository = DirectoryRepository(folder / ".gnomon" / "models")
    repository.put("weighty", "1", {"program.json": dump_program(program), "weights.safetensors": weights})
    return repository


def stored_files(gateway: Serving) -> list[str]:
    """The objects of the server's repository and the rests of uploads."""
    folders = (gateway.state / "models" / "objects", gateway.state / "models" / "incoming", gateway.state / "uploads")
    return [str(path) for folder in folders if folder.exists() for path in folder.rglob("*") if path.is_file()]


def test_a_model_is_added_to_a_server_deployed_called_and_kept(lone: Serving, client: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", CAPTURE], cwd=client, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    expected = json.loads(made.stdout)
    add = ("models", "add", "flowers", "--from", "captured", "--no-engines", "-g", lone.url)
    done = command(client, *add)
    assert done.returncode == 0, done.stderr
    assert f"flowers@1 is on {lone.url}" in done.stdout
    again = command(client, *add)
    assert (again.returncode, "has it already" in again.stderr) == (0, True), again.stderr

    listed = json.loads(command(client, "models", "list", "-g", lone.url, "--json").stdout)
    assert [(row["name"], row["version"]) for row in listed] == [("flowers", "1")]
    shown = command(client, "models", "show", "flowers", "--blocks", "-g", lone.url).stdout
    assert "sizes: FP32 4 per sample" in shown
    assert "multiply-accumulates a sample" in shown

    assert lone.deploy("flowers", **BODY, annotations={"gnomon/model": "flowers@1"}).status == 202
    check_answers(lone, expected)
    lone.stop()
    lone.start()
    check_answers(lone, expected)
    assert json.loads(command(client, "models", "list", "-g", lone.url, "--json").stdout) == listed


def test_one_command_serves_a_model_from_its_source(lone: Serving, client: Path) -> None:
    (client / "net.py").write_text(
        "import torch\ndef make(): return torch.nn.Flatten(), torch.zeros(1, 2, 2)\n"
        "class Sum(torch.nn.Module):\n    def forward(self, x): return x.sum(1)\n"
    )
    up = command(client, "up", "my.flat_model", "--from", "net.py:make", "-g", lone.url)
    assert up.returncode == 0, up.stderr
    assert f"{lone.url}/function/my-flat-model" in up.stdout
    query = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 2, 2], "data": [1, 2, 3, 4]}]}
    answer = lone.call("POST", "/v2/models/my-flat-model/infer", query)
    assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4]

    # A model of this machine's repository that the server does not have.
    assert command(client, "models", "add", "sum", "--from", "net.py:Sum", "--shape", "3", "--no-engines").returncode == 0
    up = command(client, "up", "sum", "--name", "total", "-g", lone.url, "--annotation", "gnomon/max-batch=4")
    assert up.returncode == 0, up.stderr
    assert lone.call("POST", "/v2/models/total/infer", QUERY | {"inputs": [QUERY["inputs"][0] | {"name": "x", "shape": [1, 3],
        "data": [1, 2, 3]}]}).json()["outputs"][0]["data"] == [6]  # fmt: skip
    assert json.loads(command(client, "describe", "total", "-g", lone.url, "--json").stdout)

    refused = command(client, "up", "net.py:make", "-g", lone.url)
    assert (refused.returncode, "gnomon up NAME --from net.py:make" in refused.stderr) == (2, True), refused.stderr
    unknown = command(client, "up", "flowrs", "-g", lone.url)
    assert (unknown.returncode, "model_not_found" in unknown.stderr) == (1, True), unknown.stderr


def check_answers(gateway: Serving, expected: list[list[float]]) -> None:
    eventually(lambda: gateway.call("GET", "/v2/models/flowers/ready").status == 200, limit_s=LIMIT_S)
    answer = gateway.call("POST", "/v2/models/flowers/infer", QUERY)
    assert answer.status == 200, answer.data
    np.testing.assert_allclose(answer.json()["outputs"][0]["data"], expected[0], rtol=1e-5)


def test_an_upload_that_is_interrupted_leaves_nothing(lone: Serving, client: Path) -> None:
    """Ctrl-C while the server has a part of the file: the client sends through a relay that stops in the middle."""
    weighty(client, 64)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [*GNOMON, "models", "add", "weighty", "--no-engines", "-g", f"http://127.0.0.1:{listener.getsockname()[1]}"],
            cwd=client,
            stderr=subprocess.PIPE,
            text=True,
        )
        server = socket.create_connection(("127.0.0.1", int(lone.url.rpartition(":")[2])))
        listener.settimeout(60)
        source, _ = listener.accept()
        with server, source:
            relay(source, server, 20 << 20)
            eventually(lambda: sum(Path(path).stat().st_size for path in stored_files(lone)) > 10 << 20)
            assert lone.call("GET", "/gnomon/models").json() == []
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
    assert process.stderr is not None
    process.stderr.close()
    eventually(lambda: stored_files(lone) == [])
    assert lone.call("GET", "/gnomon/models").json() == []
    done = command(client, "models", "add", "weighty", "--no-engines", "-g", lone.url)
    assert done.returncode == 0, done.stderr
    assert "sent " in done.stderr


def relay(source: socket.socket, target: socket.socket, most_bytes: int) -> None:
    """Pass on both directions until so much has come from the source."""
    passed = 0
    source.settimeout(0.05)
    target.settimeout(0.05)
    while passed < most_bytes:
        for first, second in ((source, target), (target, source)):
            with contextlib.suppress(TimeoutError):
                data = first.recv(1 << 16)
                second.settimeout(60)
                second.sendall(data)
                second.settimeout(0.05)
                passed += len(data) if first is source else 0


def test_a_server_that_is_killed_during_an_upload_has_nothing_half_registered(lone: Serving, tmp_path: Path) -> None:
    entry = weighty(tmp_path / "other", 32).get("weighty")
    body = b"".join(Archive(entry.files, entry.sha256))
    with socket.create_connection(("127.0.0.1", int(lone.url.rpartition(":")[2]))) as connection:
        head = f"PUT /gnomon/models/weighty/1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[: len(body) * 3 // 4])
        eventually(lambda: sum(Path(path).stat().st_size for path in stored_files(lone)) > 10 << 20)
        lone.kill()
    lone.start()
    assert stored_files(lone) == []
    assert lone.call("GET", "/gnomon/models").json() == []
    assert lone.call("PUT", "/gnomon/models/weighty/1", body).status == 200
    assert [row["name"] for row in lone.call("GET", "/gnomon/models").json()] == ["weighty"]


def test_uploads_neither_fill_the_servers_memory_nor_stop_other_requests(lone: Serving, client: Path) -> None:
    weighty(client, 256)
    before = resident_peak_bytes(lone)
    process = subprocess.Popen(
        [*GNOMON, "models", "add", "weighty", "--no-engines", "-g", lone.url], cwd=client, stderr=subprocess.DEVNULL
    )
    slowest_s = 0.0
    while process.poll() is None:
        begin_s = time.monotonic()
        assert lone.call("GET", "/healthz").status == 200
        slowest_s = max(slowest_s, time.monotonic() - begin_s)
        time.sleep(0.02)
    assert process.returncode == 0
    assert resident_peak_bytes(lone) - before < 96 << 20, "less than half of the file, which is hashed and written in portions"
    assert slowest_s < 2.0


def resident_peak_bytes(gateway: Serving) -> int:
    assert gateway.process is not None
    return peak_bytes(gateway.process.pid)


def test_refusals_are_told_in_a_line(tmp_path: Path, client: Path) -> None:
    gateway = Serving(tmp_path / "state")
    gateway.start("--max-model", "1Mi", "--basic-auth")
    try:
        weighty(client, 8)
        add = ("models", "add", "weighty", "--no-engines", "-g", gateway.url)
        refused = command(client, *add)
        assert refused.returncode == 1
        assert "asks for a login" in refused.stderr
        password = (gateway.state / "secrets" / "basic-auth-password").read_text()
        login = [*GNOMON, "login", "-g", gateway.url, "--password-stdin"]
        environment = {**os.environ, "OPENFAAS_CONFIG": str(client / "config")}
        subprocess.run(login, input=password, text=True, cwd=client, env=environment, check=True, timeout=LIMIT_S)
        refused = command(client, *add)
        assert refused.returncode == 1
        assert "413 model_too_large" in refused.stderr
        assert stored_files(gateway) == []
    finally:
        gateway.stop()
        gateway.client.clear()
