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
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import gnomon
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import ROOT, START_LIMIT_S, started
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
TEMPLATE = ROOT / "templates" / "gnomon-application"
ACCURACY = {"quick": 0.6, "exact": 0.9}
SIDE = 8
TENSOR = {"name": "image", "shape": [1, 3, SIDE, SIDE], "datatype": "FP32", "data": [0.5] * (3 * SIDE * SIDE)}
USER = 10001
"""The user of the image."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the image: the template's folder with an application of two models."""
    made = tmp_path_factory.mktemp("image")
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
    for path in (made, *made.parents[:2]):
        path.chmod(0o755)  # as in an image: readable by every user
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

    def __init__(self, folder: Path, temporary: Path) -> None:
        temporary.mkdir()
        temporary.parent.chmod(0o755)
        temporary.chmod(0o777)
        variables = {"PATH": os.environ["PATH"], "HOME": str(temporary), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
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
        named = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)) as connection:
            connection.request(method, path, None if document is None else json.dumps(document), named)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def query(self, path: str = "/", parameters: dict[str, Any] | None = None, **headers: str) -> tuple[int, Message, bytes]:
        return self.ask("POST", path, {"inputs": [TENSOR], "parameters": parameters or {}}, **headers)

    def measured(self) -> bool:
        """True once all variants have been measured, by the gateway's own route."""
        _, _, body = self.ask("GET", "/system/applications/faces", port=self.control)
        return {one["state"] for one in json.loads(body)["variants"]} <= {"active", "inactive"}

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def running(folder: Path, temporary: Path) -> Iterator[Container]:
    container = Container(folder, temporary)
    try:
        container.await_start()
        eventually(lambda: container.ask("GET", "/_/ready")[0] == 200, "it was never ready")
        eventually(container.measured, "its variants were never measured")
        yield container
    finally:
        container.end()


@pytest.fixture(scope="module")
def container(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with running(folder, tmp_path_factory.mktemp("run") / "tmp") as served:
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


def test_no_query_is_lost_when_the_container_is_told_to_end(folder: Path, tmp_path: Path) -> None:
    """A platform still sends requests for a moment after SIGTERM: it learns of the end from the readiness, or later."""
    with running(folder, tmp_path / "tmp") as container:
        container.process.send_signal(signal.SIGTERM)
        eventually(lambda: container.ask("GET", "/_/ready")[0] == 503, "it stayed ready")
        answers = [container.query("/", {"accuracy": 0.8}) for _ in range(10)]
        assert container.process.wait(60) == 0, container.errors.read_text()
    assert {variant(answer) for answer in answers} == {"exact"}
    assert {answer[1]["Connection"] for answer in answers} == {"close"}


def test_container_with_a_model_that_is_not_there_ends_and_names_it(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "image"
    shutil.copytree(folder, own)
    declare(own, {"quick": 0.6, "absent": 0.9})
    container = Container(own, tmp_path / "tmp")
    assert container.process.wait(60) == 1
    container.end()
    assert "absent" in container.errors.read_text()
    assert "Traceback" not in container.errors.read_text()


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
