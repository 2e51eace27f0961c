"""Gnomon as a user runs it: `gnomon serve` in a process of its own, functions deployed by `gnomon up`.

State is a temporary folder, gone afterwards. What takes long and is not measured is kept beside the peers' environments: the
captured models, and, for a benchmark that asks for it, built environments.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import ENVIRONMENTS, torch_build
from benchmarks.programs import ROOT, Endpoint, Program, ProgramFailedError, free_port, running

STACK = ROOT / "benchmarks" / "stack.yml"
COMMAND = str(Path(sys.executable).parent / "gnomon")
MODELS = ENVIRONMENTS / "models"
LIMIT_S = 60.0
_SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class RefusedError(RuntimeError):
    """The gateway answered with an error."""


@dataclass(frozen=True, slots=True)
class Gnomon:
    """A running `gnomon serve`."""

    address: str
    state: Path
    program: Program

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def up(self, name: str, workload: str = "", annotations: Mapping[str, str] | None = None) -> Endpoint:
        """Build and deploy a function of benchmarks/stack.yml, and wait for its first answer."""
        self.deploy(name, annotations)
        endpoint = Endpoint.of("gnomon", f"{self.url}/function/{name}", workload or name)
        endpoint.wait_for_answer()
        return endpoint

    def deploy(self, name: str, annotations: Mapping[str, str] | None = None) -> None:
        """`gnomon up` for one function."""
        added = [f"--annotation={key}={value}" for key, value in (annotations or {}).items()]
        command = [COMMAND, "up", "-f", str(STACK), "-g", self.url, "--filter", name, "--quiet", *added]
        environment = {**os.environ, "GNOMON_STATE": str(self.state)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RefusedError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")

    def call(self, method: str, path: str, document: Any = None) -> Any:
        """A control route. None where the answer is empty."""
        connection = http.client.HTTPConnection(self.address, timeout=LIMIT_S)
        try:
            body = json.dumps(document) if document is not None else None
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise RefusedError(f"{method} {path}: {answer.status} {data.decode(errors='replace')}")
        try:
            return json.loads(data) if data else None
        except ValueError:
            return data

    def function(self, name: str) -> dict[str, Any]:
        """A function's document, as it is now."""
        document: dict[str, Any] = self.call("GET", f"/system/function/{name}")
        return document

    def scale(self, name: str, replicas: int) -> None:
        """Ask for so many instances and wait until there are."""
        self.call("POST", f"/system/scale-function/{name}", {"serviceName": name, "replicas": replicas})
        self.wait_replicas(name, replicas)

    def wait_replicas(self, name: str, replicas: int) -> None:
        """Return when so many instances can take requests."""
        end_s = time.monotonic() + LIMIT_S
        while (self.function(name).get("availableReplicas") or 0) != replicas:
            if time.monotonic() > end_s:
                raise ProgramFailedError(f"{name} has no {replicas} instances:\n{self.program.tail()}")
            time.sleep(0.005)

    def series(self, name: str, function: str) -> float:
        """The sum of a metric's values over the labels of one function, from /metrics."""
        page = self.call("GET", "/metrics").decode()
        label = f'function_name="{function}.openfaas-fn"'
        return sum(float(value) for metric, labels, value in _SERIES.findall(page) if metric == name and label in labels)


@contextlib.contextmanager
def serving(state: Path | None = None, options: Sequence[str] = ()) -> Iterator[Gnomon]:
    """Gnomon for the length of a block, on a free port. Without `state`, in a folder of its own that is removed.

    `options` are further ones of `gnomon serve`.
    """
    with contextlib.ExitStack() as stack:
        folder = state or Path(stack.enter_context(temporary()))
        port = free_port()
        command = [COMMAND, "serve", "--port", str(port), "--state", str(folder / "state"), "--models", str(MODELS)]
        # What is measured must not share the machine with conversions and profiles.
        command += ["--no-convert", *options]
        environment = {"UV_TORCH_BACKEND": torch_build()} if torch_build() else {}
        program = stack.enter_context(running(command, folder, environment))
        program.wait_ready(f"http://127.0.0.1:{port}/healthz")
        yield Gnomon(f"127.0.0.1:{port}", folder / "state", program)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-benchmark-"))
    # Functions run under users of their own and must reach what is built for them.
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
