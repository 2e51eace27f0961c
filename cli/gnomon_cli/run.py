"""`gnomon run`: serve, deploy a stack file, show a photograph to its first model, and go on serving.

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

from gnomon_cli.client import Gateway
from gnomon_cli.commands.deploy import send
from gnomon_cli.credentials import Credentials
from gnomon_cli.deployment import Overrides, from_stack
from gnomon_cli.errors import CommandFailed
from gnomon_cli.stack import Stack, StackFunction, load_stack
from gnomon_core.interfaces import ModelRepository
from gnomon_core.packaging import how_to_install
from gnomon_core.settings import PREFIX
from gnomon_profiler.add import ensure_model
from gnomon_profiler.names import in_catalog
from gnomon_profiler.places import open_repository
from gnomon_server.composition import Gnomon, serve
from gnomon_server.options import FETCHED, ServeOptions
from gnomon_server.process import check_room

MODEL = f"{PREFIX}model"
READY_LIMIT_S = 60.0
OK = 200


def run(options: ServeOptions, stack_file: str, *, once: bool) -> None:
    """Serve and demonstrate; with `once`, end after the answer.

    Raises:
        CommandFailed: the stack file is not usable, or the demonstration got no answer.

    """
    stack = load_stack(stack_file, os.environ)
    classifier = next((function for function in stack.functions if MODEL in function.annotations), None)
    if classifier is None:
        raise CommandFailed(f"{stack.file} has no function with the annotation {MODEL}.", "Add one, or use `gnomon serve`.")

    async def demonstrate(gnomon: Gnomon) -> bool:
        await asyncio.to_thread(_Demonstration(gnomon.url, stack, classifier).show)
        return not once

    check_room(options.state)
    _capture(stack, open_repository(options.models, options.state / FETCHED))
    print("Starting Gnomon …", flush=True)
    serve(options, demonstrate)


def _capture(stack: Stack, repository: ModelRepository) -> None:
    """Put the models that the stack names into the repository, with progress; the gateway would do it in silence."""
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
        begun_s = time.monotonic()
        answer = self._ask(gateway, photograph.read_bytes())
        first_ms = (time.monotonic() - begun_s) * 1e3
        begun_s = time.monotonic()
        self._ask(gateway, photograph.read_bytes())
        again_ms = (time.monotonic() - begun_s) * 1e3
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

    def _ask(self, gateway: Gateway, photograph: bytes) -> dict[str, Any]:
        end_s = time.monotonic() + READY_LIMIT_S
        while True:
            path = f"/function/{self.classifier.name}"
            answer = gateway.call("POST", path, body=photograph, headers={"Content-Type": "image/png"})
            if answer.status == OK:
                document: dict[str, Any] = json.loads(answer.data)
                return document
            # An instance that has just begun may be refused for a moment; the answer says when to come again.
            if "Retry-After" not in answer.headers or time.monotonic() > end_s:
                raise CommandFailed(gateway.explain(answer))
            time.sleep(min(1.0, float(answer.headers["Retry-After"])))


def photograph_path() -> Path:
    """The picture in scikit-image's package, found without importing it."""
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        raise CommandFailed("The photograph comes with scikit-image, which is not installed.", how_to_install("models"))
    return Path(package.origin).parent / "data" / "coffee.png"
