"""`gnomon run`: serve, deploy a stack file, classify a photograph by its first model, and go on serving. `make run` calls it.

The photograph is the cup of coffee that scikit-image ships; ImageNet's class for it is "espresso".
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import Command
from gnomon_cli.commands.deploy import send
from gnomon_cli.commands.serve import read_options, serve_options
from gnomon_cli.credentials import Credentials
from gnomon_cli.deployment import MODEL, Overrides, from_stack
from gnomon_cli.output import CommandFailed
from gnomon_cli.stack import Stack, StackFunction, load_stack
from gnomon_core.interfaces import ModelRepository
from gnomon_core.packaging import how_to_install
from gnomon_server.options import FETCHED

READY_LIMIT_S = 60.0
OK = 200


@click.command(
    cls=Command,
    examples="""
    gnomon run
    gnomon run --once
    gnomon run -f my-stack.yml --port 9000
    """,
)
@click.option("-f", "--yaml", "stack_file", default="stack.yml", metavar="FILE", help="Stack file to deploy; default stack.yml.")
@click.option("--once", is_flag=True, help="Exit after the answer.")
@serve_options
def run(*, stack_file: str, once: bool, **options: Any) -> None:
    """Serve, deploy a stack file and classify a photograph."""
    from gnomon_profiler.repository import open_repository  # noqa: PLC0415 - the libraries of gateway and profiler take a second
    from gnomon_server.composition import Gnomon, serve  # noqa: PLC0415 - likewise
    from gnomon_server.process import check_disk_space  # noqa: PLC0415 - likewise

    serving = read_options(**options)
    stack = load_stack(stack_file, os.environ)
    classifier = next((function for function in stack.functions if MODEL in function.annotations), None)
    if classifier is None:
        raise CommandFailed(f"{stack.file} has no function with the annotation {MODEL}.", "Add one, or use `gnomon serve`.")

    async def demonstrate(gnomon: Gnomon) -> bool:
        await asyncio.to_thread(_Demonstration(gnomon.url, stack, classifier).show)
        return not once

    check_disk_space(serving.state)
    _capture(stack, open_repository(serving.models, serving.state / FETCHED))
    print("Starting Gnomon …", flush=True)
    serve(serving, demonstrate)


def _capture(stack: Stack, repository: ModelRepository) -> None:
    """Put the models that the stack names into the repository and print the progress; the gateway would print none."""
    from gnomon_profiler.add import ensure_model  # noqa: PLC0415 - the profiler's libraries take a second to import
    from gnomon_profiler.names import in_catalog  # noqa: PLC0415 - likewise

    for function in stack.functions:
        model = function.annotations.get(MODEL, "")
        if in_catalog(model.partition("@")[0]):
            ensure_model(repository, model.partition("@")[0], progress=lambda line: print(f"  {line}", flush=True))


@dataclass(frozen=True, slots=True)
class _Demonstration:
    url: str
    stack: Stack
    classifier: StackFunction

    def show(self) -> None:
        gateway = Gateway(self.url, Credentials())
        for function in self.stack.functions:
            self._deploy(gateway, function)
        photograph = photograph_path()
        started_s = time.monotonic()
        answer = self._classify(gateway, photograph.read_bytes())
        first_ms = (time.monotonic() - started_s) * 1e3
        started_s = time.monotonic()
        self._classify(gateway, photograph.read_bytes())
        again_ms = (time.monotonic() - started_s) * 1e3
        print(f"\n  {photograph.name}: {answer['label']} ({answer['confidence']:.0%})")
        print(f"  by {answer['model']} in {first_ms:.0f} ms, again in {again_ms:.0f} ms\n")
        print("Call it yourself:")
        print(
            f'  curl --data-binary @"{photograph}" -H "Content-Type: image/png" {self.url}/function/{self.classifier.name}\n',
            flush=True,
        )

    def _deploy(self, gateway: Gateway, function: StackFunction) -> None:
        send(gateway, from_stack(self.stack, function, Overrides(), read_template=True), replace=False, update=True)
        print(f"Deployed {function.name}.", flush=True)

    def _classify(self, gateway: Gateway, photograph: bytes) -> dict[str, Any]:
        end_s = time.monotonic() + READY_LIMIT_S
        while True:
            path = f"/function/{self.classifier.name}"
            answer = gateway.call("POST", path, body=photograph, headers={"Content-Type": "image/png"})
            if answer.status == OK:
                document: dict[str, Any] = json.loads(answer.data)
                return document
            # Requests to an instance that has just started may be refused; the answer says when to retry.
            if "Retry-After" not in answer.headers or time.monotonic() > end_s:
                raise CommandFailed(gateway.explain(answer))
            time.sleep(min(1.0, float(answer.headers["Retry-After"])))


def photograph_path() -> Path:
    """The picture in scikit-image's package, found without importing it."""
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        raise CommandFailed("The photograph comes with scikit-image, which is not installed.", how_to_install("models"))
    return Path(package.origin).parent / "data" / "coffee.png"
