"""The order that a platform passes to the process that becomes an instance.

A platform writes an `Order`; the process reads it, enters the sandbox, and runs the application that the launch names. An order
travels in an anonymous file and never in arguments or an environment, where other users of the machine could read its secrets.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnomon_core.errors import GnomonError

HANDLER_CONCURRENCY = 4
"""Requests that an instance with a synchronous `handle` executes at once, each in a thread, unless `gnomon/concurrency` says it:
as many as waitress has threads in OpenFaaS's Python templates, for which handlers were written."""
ASYNC_CONCURRENCY = 32
"""Requests that an instance with `async def handle` executes at once, on one event loop, unless `gnomon/concurrency` says it."""
MOST_CONCURRENCY = 1000
TOKEN_FILE = "/var/openfaas/secrets/gnomon-batch-token"  # noqa: S105 - where it is, not what it is


def batch_token(environment: Mapping[str, str]) -> str | None:
    """The token of an image's batch route, from `GNOMON_BATCH_TOKEN` or from the secret's file; None where it has none."""
    file = Path(environment.get("GNOMON_BATCH_TOKEN_FILE") or TOKEN_FILE)
    return environment.get("GNOMON_BATCH_TOKEN") or (file.read_text().strip() if file.is_file() else "") or None


def check_batch_token(token: str | None, header: str) -> None:
    """Refuse a batch whose `Authorization` header does not have the token.

    Raises:
        GnomonError: 403 `batches_off` for an image without a token; 401 `bad_token`.

    """
    if token is None:
        message = "This function takes no batches: it has no token for them."
        raise GnomonError(403, "batches_off", message, "Give it the secret gnomon-batch-token.")
    if not hmac.compare_digest(header.encode("latin-1", "replace"), f"Bearer {token}".encode()):
        raise GnomonError(401, "bad_token", "The batch route needs its token.", "Send it as Authorization: Bearer TOKEN.")


@dataclass(frozen=True, slots=True)
class Launch:
    """The parameters with which an instance starts.

    `kind` is "model" (a layer program), "handler" (a user's handler.py), "process" (a process per request, as the classic
    watchdog runs it) or "redirect"; `options` holds what only that kind needs, listed where its application is defined.
    `environment` is the whole environment of the function, nothing is inherited. `concurrency` is how many batches may execute at
    once, None the default of what is served.
    """

    kind: str
    function: str
    instance_id: str
    cores: int = 1
    max_batch: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> Launch:
        return Launch(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a process and its children. None is unlimited.

    `memory_bytes` bounds the private memory that each of them adds; `wall_s` is kept only by the command form of the sandbox.
    """

    memory_bytes: int | None = None
    processes: int | None = None
    open_files: int = 1024
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The user of a process and its view of the machine.

    It becomes `uid` (and the group of the same number) where that is set. It cannot see what is under `hidden`. `readable` and
    `writable` can be reached although something above them is hidden or closed to the uid. `secrets` are files below
    /var/openfaas/secrets that only it can read. /tmp is its own, at most `tmp_bytes` large; nothing else can be written to but
    `writable`. Where `tcp_ports` is set, it connects to these ports only, if the kernel can keep it from others.
    """

    uid: int | None = None
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    read_only_root: bool = False
    tmp_bytes: int = 512 * 2**20
    tcp_ports: tuple[int, ...] | None = None
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> str:
        """JSON with the secrets in base64."""
        document = asdict(self)
        document["secrets"] = {name: base64.b64encode(value).decode() for name, value in self.secrets.items()}
        return json.dumps(document)

    @staticmethod
    def from_json(text: str | bytes) -> Sandbox:
        document = json.loads(text)
        for name in ("readable", "writable", "hidden"):
            document[name] = tuple(document.get(name, ()))
        document["tcp_ports"] = None if document.get("tcp_ports") is None else tuple(document["tcp_ports"])
        document["secrets"] = {name: base64.b64decode(value) for name, value in document.get("secrets", {}).items()}
        document["limits"] = Limits(**document.get("limits", {}))
        return Sandbox(**document)


@dataclass(frozen=True, slots=True)
class Order:
    """The order to start one instance: its program, its sandbox and its CPUs.

    `entered` says that the process it is forked from lives in this sandbox already; then only the limits remain to be set.
    `groups` are files of control groups that it enters itself, by writing 0 into them, before the sandbox.
    """

    launch: Launch
    sandbox: Sandbox
    entered: bool = False
    cpus: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()

    def to_json(self) -> str:
        launch, sandbox = self.launch.to_json(), self.sandbox.to_json()
        return json.dumps(
            {"launch": launch, "sandbox": sandbox, "entered": self.entered, "cpus": self.cpus, "groups": self.groups}
        )

    @staticmethod
    def from_json(text: str | bytes) -> Order:
        document = json.loads(text)
        launch, sandbox = Launch.from_json(document["launch"]), Sandbox.from_json(document["sandbox"])
        return Order(launch, sandbox, bool(document["entered"]), tuple(document["cpus"]), tuple(document.get("groups", ())))
