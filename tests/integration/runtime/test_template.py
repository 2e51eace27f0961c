"""The template and the functions made from it: self-contained, locked, and serving from the wheel alone."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from moto.server import ThreadedMotoServer

from deploy.pack_templates import PUBLIC_INDEX
from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_profiler.layers_file import LAYERS
from gnomon_profiler.repository import PROGRAM, WEIGHTS, DirectoryRepository
from gnomon_profiler.s3 import S3Repository
from gnomon_runtime.pair.headers import HEADER, ROW, Message, Row
from gnomon_runtime.pair.headers import Kind as Say
from gnomon_runtime.pair.headers import decode as decode_message
from gnomon_runtime.pair.headers import encode as encode_message

ROOT = Path(__file__).resolve().parents[3]
TEMPLATE = ROOT / "templates" / "gnomon-body"
SHADOW = ROOT / "templates" / "gnomon-shadow"
APPLICATION = ROOT / "templates" / "gnomon-application"
UPGRADE = (
    "GET /gnomon/pair HTTP/1.1\r\nHost: shadow\r\nAuthorization: Bearer token\r\nConnection: Upgrade\r\n"
    "Upgrade: gnomon-pair/1\r\n\r\n"
)


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, unpacked as by an installation."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True, timeout=60)
    (wheel,) = folder.glob("gnomon-*-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(folder / "packages")
    return folder / "packages"


@contextmanager
def serving(folder: Path, packages: Path, **variables: str) -> Iterator[int]:
    """The process that the image's CMD starts, with our packages from the wheel before those of this environment."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages), "GNOMON_BATCH_TOKEN": "token", **variables}
    python, *command = yaml.safe_load((TEMPLATE / "template.yml").read_text())["fprocess"].split()
    assert python == "python"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command, "--bind", f"127.0.0.1:{port}"],
            cwd=folder, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline_s = time.monotonic() + 60
        while True:
            try:
                if call(port, "GET", "/_/ready")[0] == 200:
                    break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        assert process.wait(30) == 0, (folder / "log").read_text()


def call(port: int, method: str, path: str, body: bytes = b"", token: str = "token") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_the_template_serves_from_the_wheel_alone(tmp_path: Path, wheel_folder: Path) -> None:
    shutil.copytree(TEMPLATE / "function", tmp_path / "function")
    with serving(tmp_path, wheel_folder) as port:
        assert json.loads(call(port, "POST", "/", b"three small words")[1]) == {"words": 3}
        frame = Frame(Kind.BATCH, members=[Member(0, 1, b"POST\n/\n\n", body) for body in (b"a", b"\xff", b"a b")])
        result = decode(call(port, "POST", "/gnomon/batch", encode(frame))[1])
    assert [member.code for member in result.members] == [200, 400, 200]


def test_the_handlers_own_test_passes(tmp_path: Path) -> None:
    shutil.copytree(TEMPLATE / "function", tmp_path / "function")
    command = re.search(r'TEST_COMMAND="python (.*)"', (TEMPLATE / "Dockerfile").read_text())
    assert command is not None
    result = subprocess.run([sys.executable, *command[1].split()], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert b"Ran 3 tests" in result.stderr


def test_everything_an_image_installs_from_an_index_is_locked_by_hash() -> None:
    lock = (TEMPLATE / "requirements.txt").read_text()
    # Of torch's CPU build PyTorch's own index is named, and no other one ever.
    lock = lock.replace(f"\n--extra-index-url {PUBLIC_INDEX}\n", "\n", 1)
    requirements = lock.replace("\\\n", " ").splitlines()
    assert len(requirements) > 20
    for line in requirements:
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9-]+==\S+( ; .*?)?( +--hash=sha256:[0-9a-f]{64})+", line), line
    assert "://" not in lock
    names = {line.partition("==")[0] for line in requirements}
    assert {"boto3", "flask", "gunicorn", "numpy", "pillow", "safetensors", "torch"} <= names
    assert {"httptools", "starlette", "uvicorn", "uvloop"} <= names, "an application's image has a gateway"
    assert "gnomon" not in names, "ours comes from the wheel, never by name from an index"


def test_the_lock_holds_the_versions_that_are_tested_together() -> None:
    pinned = re.compile(r"^([a-z0-9.-]+)==(\S+)", re.MULTILINE)
    tested = dict(pinned.findall((ROOT / "constraints.txt").read_text()))
    found = pinned.findall((TEMPLATE / "requirements.txt").read_text())
    # `+cpu` is a build of a version.
    locked = {name: version.partition("+")[0] for name, version in found}
    assert {name: version for name, version in locked.items() if tested.get(name, version) != version} == {}


def test_the_image_has_the_port_and_the_user_of_the_contract() -> None:
    dockerfile = (TEMPLATE / "Dockerfile").read_text()
    assert "EXPOSE 8080" in dockerfile
    assert "USER 10001:10001" in dockerfile
    installs = re.findall(r"pip install (.*)", dockerfile)
    assert len(installs) == 3
    assert "--require-hashes" in installs[0]
    assert installs[1].startswith("--no-index --no-deps /tmp/gnomon/gnomon-*.whl")


CAPTURE = """
import json, sys, torch
from pathlib import Path
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
torch.manual_seed(0)
line = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval()
image = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 2)).eval()
said = {}
for name, module, shape in (("line", line, (3,)), ("image", image, (1, 4, 4))):
    files = capture(module, [torch.zeros(2, *shape)], Description(name))
    DirectoryRepository(Path(sys.argv[1])).put(name, "1", files)
    blocks = json.loads(files["layers.json"])["blocks"]
    said[name] = {"operations": [blocks[0]["operations"][0], blocks[-1]["operations"][1]], "blocks": len(blocks),
                  "answer": module(torch.ones(1, *shape)).tolist()[0]}
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A repository of two small models, and what is known of each: its operations, its blocks, its answer to ones."""
    folder = tmp_path_factory.mktemp("models")
    made = subprocess.run([sys.executable, "-c", CAPTURE, folder], capture_output=True, text=True, check=True, timeout=100)
    return folder, json.loads(made.stdout)


@pytest.fixture(params=["folder", "s3"])
def models(request: pytest.FixtureRequest, captured: tuple[Path, dict[str, Any]], tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables that name the repository of those models: its folder, or a copy in a bucket."""
    folder, _ = captured
    if request.param == "folder":
        yield {"GNOMON_MODELS": str(folder)}
        return
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="models")
        bucket = S3Repository("models", "gnomon", tmp_path / "put", client)
        for entry in DirectoryRepository(folder).list():
            assert entry.layers is not None
            files = {PROGRAM: entry.program, WEIGHTS: entry.weights, LAYERS: entry.layers}
            bucket.put(entry.name, entry.version, {name: path.read_bytes() for name, path in files.items()})
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        variables = {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"} | {key.upper(): keys[key] for key in keys}
        yield variables | {"GNOMON_MODELS": "s3://models/gnomon", "TMPDIR": str(temporary)}
    finally:
        server.stop()


@pytest.mark.torch
def test_the_body_serves_the_model_that_is_named(
    tmp_path: Path, wheel_folder: Path, captured: tuple[Path, dict[str, Any]], models: dict[str, str]
) -> None:
    _, known = captured
    shutil.copytree(ROOT / "functions" / "body", tmp_path / "function")
    with serving(tmp_path, wheel_folder, GNOMON_MODEL="line@1", **models) as port:
        assert call(port, "POST", "/", b"x")[0] == 415
        head = json.dumps({"kind": "tensors", "inputs": [{"name": "input", "datatype": "FP32", "shape": [3]}]}).encode()
        ones = b"\0\0\x80\x3f" * 3
        frame = Frame(Kind.BATCH, 1, head=head, members=[Member(0, 1, b"", ones), Member(0, 2, b"", ones * 2)])
        result = decode(call(port, "POST", "/gnomon/batch", encode(frame))[1])
    assert [(member.code, member.size) for member in result.members] == [(200, 1), (200, 2)]
    expected = known["line"]["answer"]
    assert memoryview(bytes(result.members[0].body)).cast("f").tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("template", [SHADOW, APPLICATION], ids=["shadow", "application"])
def test_shadow_and_application_are_the_bodys_image_with_another_folder(template: Path) -> None:
    """So a node that has one of them has the layers of all."""
    for name in ("Dockerfile", "requirements.txt", "slim_torch.py", "function/__init__.py"):
        assert (template / name).read_bytes() == (TEMPLATE / name).read_bytes()
    ours, theirs = (yaml.safe_load((folder / "template.yml").read_text()) for folder in (template, TEMPLATE))
    assert ours["language"] == template.name
    assert ours["fprocess"] == theirs["fprocess"]


def test_the_shadows_handler_is_the_function_gnomon_shadow() -> None:
    assert (SHADOW / "function" / "handler.py").read_bytes() == (ROOT / "functions" / "shadow" / "handler.py").read_bytes()


@pytest.mark.torch
def test_the_shadow_computes_blocks_for_whoever_has_the_token(
    tmp_path: Path, wheel_folder: Path, captured: tuple[Path, dict[str, Any]], models: dict[str, str]
) -> None:
    _, known = captured
    model = known["image"]
    shutil.copytree(SHADOW / "function", tmp_path / "function")
    variables = {"GNOMON_MODEL": "image@1", "GNOMON_BLOCKS": f"0-{model['blocks'] - 1}", **models}
    begin, end = model["operations"]
    asked = Message(Say.COMPUTE, 1, begin, end, 2, (Row(0, 128, "FP32", (2, 1, 4, 4), (0, 1, 2, 3)),))
    with serving(tmp_path, wheel_folder, **variables) as port:
        assert call(port, "GET", "/_/health") == (200, b"ok\n")
        assert call(port, "GET", "/gnomon/pair", token="guess")[0] == 401
        assert call(port, "GET", "/gnomon/pair")[0] == 426
        assert call(port, "POST", "/", b"a request")[0] == 415
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(UPGRADE.encode())
            stream = connection.makefile("rb")
            assert stream.readline() == b"HTTP/1.1 101 Switching Protocols\r\n"
            while stream.readline() != b"\r\n":
                pass
            connection.sendall(encode_message(asked) + b"\0\0\x80\x3f" * 32)
            answer = decode_message(stream.read(HEADER.size + ROW.size), 1 << 16)
            [row] = answer.rows
            values = memoryview(stream.read(row.offset + row.length))[row.offset :].cast("f")
    assert (answer.kind, answer.sequence, row.shape) == (Say.DONE, 1, (2, 2))
    assert values.tolist() == pytest.approx(model["answer"] * 2, rel=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("variables", [{}, {"GNOMON_MODEL": "small", "GNOMON_BLOCKS": "3-1"}])
def test_a_shadow_that_is_told_too_little_says_what_is_missing(tmp_path: Path, variables: dict[str, str]) -> None:
    command = "from gnomon_core.launch import Launch\nfrom gnomon_runtime.handler import load_application\n"
    command += f"load_application(Launch('handler', 'f', 'i', environment={variables!r}, options={{'folder': 'function'}}))"
    shutil.copytree(SHADOW / "function", tmp_path / "function")
    result = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "GNOMON_BLOCKS" in result.stderr
