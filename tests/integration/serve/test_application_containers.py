"""The command of an application's image, as a process without root: what a platform around the container can rely on."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import gnomon
from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import ROOT, START_LIMIT_S, started, terminate
from tests.redis_process import RedisProcess, needs_redis
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
TEMPLATE = ROOT / "templates" / "gnomon-application"
ACCURACY = {"quick": 0.6, "exact": 0.9}
SIDE = 8
TENSOR = {"name": "image", "shape": [1, 3, SIDE, SIDE], "datatype": "FP32", "data": [0.5] * (3 * SIDE * SIDE)}
TOKEN = "batches-please"
USER = 10001
"""The user of the image."""


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="gnomon-image-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def place(everywhere: Path) -> Path:
    """Such a folder of the test's own."""
    made = Path(tempfile.mkdtemp(dir=everywhere))
    made.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def folder(everywhere: Path) -> Path:
    """The working directory of the image: the template's folder with an application of two models."""
    made = everywhere / "image"
    shutil.copytree(TEMPLATE / "function", made / "function")
    repository = DirectoryRepository(made / "function" / "models")
    torch.manual_seed(0)
    for name, width in (("quick", 4), ("exact", 64)):
        layers = [torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, width), torch.nn.Linear(width, 4)]
        files = capture(
            torch.nn.Sequential(*layers).eval(), (torch.ones(2, 3, SIDE, SIDE),), Description(name, "1", "", {}, ("image",))
        )
        repository.put(name, "1", files)
    declare(made, ACCURACY)
    return made


def declare(folder: Path, models: dict[str, float]) -> Path:
    file = folder / "function" / "application.yml"
    file.write_text(yaml.safe_dump({"name": "faces", "models": models, "annotations": {"gnomon/max-batch": "2"}}))
    return file


def without_root() -> list[str]:
    """Words before a command that let it run as the image's user, without capabilities; none where the tests have no root.

    Where Python lies in a folder that only root enters, such as /root, the command sees a copy of the way there.
    """
    if os.geteuid() != 0:
        return []
    python = Path(sys.base_prefix)
    closed = next((path for path in reversed(python.parents) if not path.stat().st_mode & 0o001), None)
    drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    if closed is None:
        return drop
    way = 'mount --bind "$1" /mnt && mount -t tmpfs -o mode=755 none "$2" && mkdir -p "$1" && mount --bind /mnt "$1"'
    return ["unshare", "--mount", "sh", "-c", f'{way} && shift 2 && exec "$@"', "sh", str(python), str(closed), *drop]


class Container:
    """The running command of an image: the port that clients reach, and the gateway's own on loopback."""

    def __init__(self, folder: Path, temporary: Path, **more: str) -> None:
        temporary.mkdir()
        temporary.chmod(0o777)
        variables = {"PATH": os.environ["PATH"], "HOME": str(temporary), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
        variables |= {"GNOMON_BATCH_TOKEN": TOKEN, **more}
        fprocess = yaml.safe_load((TEMPLATE / "template.yml").read_text())["fprocess"].split()
        assert fprocess[0] == "python"
        command = [*without_root(), sys.executable, *fprocess[1:], "--application-port", "0", "--port", "0"]
        self.errors = temporary / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.port, self.control = 0, 0

    def await_start(self) -> None:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_LIMIT_S)
        line = self.process.stdout.readline() if readable else ""
        found = re.search(r"on http://127\.0\.0\.1:(\d+)\. The application faces is at port (\d+)\.", line)
        assert found, line + self.errors.read_text()
        self.control, self.port = int(found[1]), int(found[2])

    def ask(self, method: str, path: str, document: Any = None, *, port: int = 0, **headers: str) -> tuple[int, Message, bytes]:
        body = None if document is None else json.dumps(document).encode()
        return self.send(method, path, body, port=port, **{"Content_Type": "application/json", **headers})

    def send(
        self, method: str, path: str, body: bytes | None = None, *, port: int = 0, **headers: str
    ) -> tuple[int, Message, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)) as connection:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def query(self, path: str = "/", parameters: dict[str, Any] | None = None, **headers: str) -> tuple[int, Message, bytes]:
        return self.ask("POST", path, {"inputs": [TENSOR], "parameters": parameters or {}}, **headers)

    def end(self) -> int:
        return terminate(self.process)


@contextmanager
def running(folder: Path, temporary: Path, **variables: str) -> Iterator[Container]:
    container = Container(folder, temporary, **variables)
    try:
        container.await_start()
        eventually(lambda: container.ask("GET", "/_/ready")[0] == 200, "it was never ready")
        yield container
    finally:
        container.end()


@pytest.fixture(scope="module")
def container(folder: Path, everywhere: Path) -> Iterator[Container]:
    with running(folder, everywhere / "tmp") as served:
        yield served


def variant(answer: tuple[int, Message, bytes]) -> str:
    status, headers, body = answer
    assert status == 200, body
    return headers["X-Gnomon-Variant"].partition("@")[0]


@pytest.mark.parametrize("path", ["/", "/any/path", "/v2/models/faces/infer"])
def test_query_at_the_containers_port_gets_a_variant_that_satisfies_it(container: Container, path: str) -> None:
    assert variant(container.query(path, {"accuracy": 0.8})) == "exact"
    assert variant(container.query(path, X_Gnomon_Accuracy="0.8")) == "exact"
    assert variant(container.query(path, {"model": "quick", "latency_ms": 60_000})) == "quick"


def test_impossible_query_is_refused_with_the_nearest_variant_or_gets_it(container: Container) -> None:
    status, headers, body = container.query("/", {"accuracy": 0.95})
    assert status == 422
    assert headers["X-Gnomon-Nearest"].startswith("exact@1/")
    assert "accuracy 0.9 instead of 0.95" in json.loads(body)["error"]
    served = container.query("/", X_Gnomon_Accuracy="0.95", X_Gnomon_Nearest="serve")
    assert variant(served) == "exact"
    assert served[1]["X-Gnomon-Nearest"] == served[1]["X-Gnomon-Variant"]


def member(accuracy: float, body: Any = None) -> Member:
    document = {"inputs": [TENSOR]} if body is None else body
    meta = f"POST\n/\n\ncontent-type: application/json\nx-gnomon-accuracy: {accuracy}".encode()
    return Member(0, 1, meta, json.dumps(document).encode())


def test_gateway_of_ours_in_front_sends_queries_together_and_each_has_its_own_variant_or_error(container: Container) -> None:
    """On Kubernetes Gnomon's gateway speaks to pods by batches alone."""
    batch = Frame(Kind.BATCH, 7, 2, members=[member(0.8), member(0.95), member(0.0, {"inputs": 1})])

    def sent(frame: Frame, token: str = TOKEN) -> tuple[int, bytes]:
        status, _, body = container.send("POST", "/gnomon/batch", encode(frame), Authorization=f"Bearer {token}")
        return status, body

    status, body = sent(batch)
    result = decode(body)
    assert (status, result.kind, result.batch_id) == (200, Kind.RESULT, 7)
    assert [member.code for member in result.members] == [200, 422, 400]
    assert b"x-gnomon-variant: exact@1/" in result.members[0].meta.lower()
    assert json.loads(bytes(result.members[0].body))["outputs"][0]["shape"] == [1, 4]
    assert b"x-gnomon-nearest: exact@1/" in result.members[1].meta.lower()
    [stale] = decode(sent(Frame(Kind.BATCH, 8, 1, members=[member(0.8)]))[1]).members
    assert stale.code == 409, "a gateway whose queue has moved on"
    assert sent(batch, "guessed")[0] == 401
    assert container.send("POST", "/gnomon/batch", b"no frame", Authorization=f"Bearer {TOKEN}")[0] == 400


def test_client_of_the_package_queries_a_container_by_its_address(container: Container) -> None:
    client = gnomon.Client(f"http://127.0.0.1:{container.port}")
    answer = client.inference_query(torch.full((1, 3, SIDE, SIDE), 0.5).numpy(), app="faces", accuracy=0.8)
    assert answer.variant.startswith("exact@1/")


@pytest.mark.parametrize("path", ["/system/functions", "/system/applications/faces", "/metrics", "/healthz", "/gnomon/instances"])
def test_control_routes_are_not_at_the_containers_port(container: Container, path: str) -> None:
    status, _, body = container.ask("GET", path)
    assert status >= 400, body
    assert container.ask("DELETE", path)[0] >= 400
    assert container.ask("GET", "/metrics", port=container.control)[0] == 200
    assert variant(container.query()) in ACCURACY


def test_no_query_is_lost_when_the_container_is_told_to_end(container: Container) -> None:
    """A platform still sends requests for a moment after SIGTERM: it learns of the end from the readiness, or later.

    This is the last test of the shared container. One of its own would measure both models again: nine seconds of CPU.
    """
    container.process.send_signal(signal.SIGTERM)
    eventually(lambda: container.ask("GET", "/_/ready")[0] == 503, "it stayed ready")
    answers = [container.query("/", {"accuracy": 0.8}) for _ in range(10)]
    assert container.process.wait(60) == 0, container.errors.read_text()
    assert {variant(answer) for answer in answers} == {"exact"}
    assert {answer[1]["Connection"] for answer in answers} == {"close"}


def test_container_with_a_model_that_is_not_there_ends_and_names_it(folder: Path, place: Path) -> None:
    own = place / "image"
    shutil.copytree(folder, own)
    declare(own, {"quick": 0.6, "absent": 0.9})
    container = Container(own, place / "tmp")
    assert container.process.wait(60) == 1
    container.end()
    assert "absent" in container.errors.read_text()
    assert "Traceback" not in container.errors.read_text()


@needs_redis
def test_replicas_with_a_store_share_what_one_of_them_has_measured(folder: Path, place: Path, tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path / "redis")

    def measured(container: Container) -> dict[str, Any]:
        variants = json.loads(container.ask("GET", "/system/applications/faces", port=container.control)[2])["variants"]
        return {variant["id"]: (variant["latency_ms"], variant["load_ms"]) for variant in variants}

    try:
        with running(folder, place / "first", GNOMON_STORE=redis.url) as container:
            first = measured(container)
            with running(folder, place / "second", GNOMON_STORE=redis.url) as another:
                assert measured(another) == first
            assert measured(container) == first
    finally:
        redis.close()
    assert len(first) == 2


def test_restart_with_another_file_has_the_models_of_that_file(folder: Path, tmp_path: Path) -> None:
    models, state = str(folder / "function" / "models"), tmp_path / "state"
    (tmp_path / "function").mkdir()

    def declared(accuracies: dict[str, float]) -> dict[str, float]:
        file = declare(tmp_path, accuracies)
        with started(state, "--models", models, "--application", str(file)) as serving:
            found = serving.call("GET", "/system/applications/faces").json()
        return {model["model"]: model["accuracy"] for model in found["models"]}

    assert declared(ACCURACY) == {"quick@1": 0.6, "exact@1": 0.9}
    assert declared({"exact@1": 0.8}) == {"exact@1": 0.8}
