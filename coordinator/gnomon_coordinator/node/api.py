"""The node's HTTP API for the platform: the state of the node, and requests for Shadows. JSON both ways, with a token.

    GET    /v1/state?incarnation=I&version=V&wait_s=S    the state; where version V is the current one, once it has changed
                    &epoch=E   from the leader of this epoch: from here on no older leader is obeyed, or answered
    PUT    /v1/shadows/ID      {"epoch", "pod_uid", "function", "program", "weights", "layers", "weight_mode", "max_batch",
                                "memory_bytes", "cores", "blocks", "split", "expected_ms"}     a Shadow for the Body in that pod
                                with "afar" that pod is on another node: the state then has a "token" with which its Body comes to
                                the Shadow, at the node's "pair_port"; with "url" and "token" the Shadow is on another node, and
                                the Body in that pod is told to go there
    PATCH  /v1/shadows/ID      {"epoch", "memory_bytes", "cores", "blocks", "split", "expected_ms"}
    DELETE /v1/shadows/ID?epoch=E       end it; forget it where it has gone
    GET    /healthz            open: this process answers
    GET    /metrics            open: the state as numbers, for Prometheus

Errors are those of every other part of Gnomon: a status, a stable code, what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from gnomon_coordinator import protocol
from gnomon_coordinator.node.shadows import NodeShadows, ShadowRequest, State
from gnomon_coordinator.protocol import BadMessageError
from gnomon_core.atomic_files import replace_file
from gnomon_core.errors import GnomonError

MAX_WAIT_S = 60.0
MAX_BODY_BYTES = 1 << 20
OPEN = ("/healthz", "/metrics")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NodeApi:
    """The routes. `state` returns the node's current state."""

    def __init__(
        self, shadows: NodeShadows, changes: ChangeFeed, epochs: Epochs, state: Callable[[], Mapping[str, Any]], token: str | None
    ) -> None:
        self._shadows = shadows
        self._changes = changes
        self._epochs = epochs
        self._state = state
        self._token = token

    def application(self) -> web.Application:
        """Make the application. Every route but those in `OPEN` needs the token, where there is one."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                if request.path not in OPEN:
                    self._authorize(request.headers.get("Authorization", ""))
                return await handler(request)
            except GnomonError as error:
                return web.Response(body=error.body(), status=error.status, headers=dict(error.headers()))
            except BadMessageError as error:
                refusal = GnomonError(400, "bad_request", f"The request is not valid: {error}.")
                return web.Response(body=refusal.body(), status=400, headers=dict(refusal.headers()))

        app = web.Application(middlewares=[guarded], client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/v1/state", self._get_state)
        app.router.add_put("/v1/shadows/{id}", self._create)
        app.router.add_patch("/v1/shadows/{id}", self._change)
        app.router.add_delete("/v1/shadows/{id}", self._destroy)
        return app

    def _authorize(self, header: str) -> None:
        if self._token is not None and not hmac.compare_digest(
            header.encode("utf-8", "surrogateescape"), f"Bearer {self._token}".encode()
        ):
            raise GnomonError(
                401, "bad_token", "The token is missing or wrong.", "Send the token that this node's coordinator was given."
            )

    async def _get_state(self, request: web.Request) -> web.Response:
        seen = request.query.get("incarnation", ""), _integer(request.query.get("version", "0"))
        wait_s = min(MAX_WAIT_S, float(_integer(request.query.get("wait_s", "0"))))
        epoch = request.query.get("epoch")
        if epoch is not None:
            # The answer includes every request accepted before; from here on an older leader's requests are refused.
            self._epochs.obey(_integer(epoch))
        await self._changes.wait_newer(*seen, wait_s)
        if epoch is not None:
            self._epochs.obey(_integer(epoch))
        return web.json_response({"incarnation": self._changes.incarnation, "version": self._changes.version, **self._state()})

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=metrics_page(self._state()), headers={"Content-Type": METRICS_TYPE})

    async def _create(self, request: web.Request) -> web.Response:
        document = await self._document(request)
        row = self._shadows.create(ShadowRequest.read(request.match_info["id"], document)).row()
        # So that the platform can tell which states are older than this request.
        return web.json_response({**row, "incarnation": self._changes.incarnation, "version": self._changes.version})

    async def _change(self, request: web.Request) -> web.Response:
        document = await self._document(request)
        self._shadows.change(request.match_info["id"], document)
        return web.json_response({})

    async def _destroy(self, request: web.Request) -> web.Response:
        self._epochs.obey(_integer(request.query.get("epoch", "")))
        self._shadows.destroy(request.match_info["id"])
        return web.json_response({})

    async def _document(self, request: web.Request) -> dict[str, Any]:
        try:
            document = json.loads(await request.read())
        except (ValueError, RecursionError):
            raise BadMessageError("the body is not JSON") from None
        if not isinstance(document, dict):
            raise BadMessageError("the body is not an object")
        self._epochs.obey(protocol.read_integer(document, "epoch", 0, protocol.MAX_BYTES))
        return document


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _integer(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(protocol.MAX_BYTES)):
        raise BadMessageError(f"{text[:40]!r} is not an integer")
    return int(text)


class ChangeFeed:
    """The version of the node's state, and requests that wait for a newer one. Runs on an event loop.

    The platform gets the whole state and no events: a client that missed some, or has just connected, knows as much as any other
    after one response. `incarnation` says whether versions are those of the same process.
    """

    def __init__(self) -> None:
        self.incarnation = secrets.token_hex(8)
        self.version = 1
        self._event = asyncio.Event()
        self._closed = False

    def changed(self) -> None:
        """Increment the version, and answer the requests that wait for a newer state."""
        self.version += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait_newer(self, incarnation: str, version: int, timeout_s: float) -> None:
        """Return once the state is newer than this version, or after the timeout."""
        while incarnation == self.incarnation and version >= self.version and timeout_s > 0 and not self._closed:
            try:
                await asyncio.wait_for(self._event.wait(), timeout_s)
            except TimeoutError:
                return

    def close(self) -> None:
        """Answer every waiting request."""
        self._closed = True
        self.changed()


EPOCH_FILE_DIGITS = 16


def epoch_file(folder: Path, token: str | None) -> Path:
    """The file of the newest epoch of the installation with this token."""
    return folder / f"epoch-{hashlib.sha256((token or '').encode()).hexdigest()[:EPOCH_FILE_DIGITS]}"


class Epochs:
    """The newest leader's epoch that this node has obeyed. Older leaders are refused, also after a restart or a power failure.

    A fencing token: a controller whose Lease has expired may not know it yet. Its successor's first request carries a higher
    epoch, and from then on the old controller's requests are answered with 409. Epochs are counted by one installation's Lease.
    Another installation starts its count again, and has another token. So the file is named by the token; otherwise a node would
    refuse every leader until the new count has passed the old.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.newest = 0
        with contextlib.suppress(FileNotFoundError, ValueError):
            self.newest = int(file.read_text(encoding="ascii"))

    def obey(self, epoch: int) -> None:
        """Accept this epoch, and refuse older ones from now on.

        Raises:
            GnomonError: 409 `stale_epoch`: a newer one has been obeyed.

        """
        if epoch < self.newest:
            text = f"This order is of epoch {epoch}; the node has obeyed {self.newest}."
            raise GnomonError(409, "stale_epoch", text, "Another controller leads now.")
        if epoch > self.newest:
            replace_file(self._file, str(epoch), durable=True)
            self.newest = epoch


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_page(state: Mapping[str, Any]) -> str:
    """The state as Prometheus metrics: seven gauges need no library in this image. No label names a function or pod."""
    pool, shadows = state["pool"], [row for row in state["shadows"] if not row["elsewhere"]]
    states = Counter(row["state"] for row in shadows)
    claimed_bytes = sum(row["memory_bytes"] for row in shadows if row["state"] != State.GONE)
    return "".join(
        (
            _gauge("gnomon_node_pool_ready", "Whether the pool can make Shadows.", {"": int(pool["ready"])}),
            _gauge("gnomon_node_containers", "Empty containers in the pool.", {"": pool["containers"]}),
            _gauge("gnomon_node_cpus", "Processors that Shadows may have.", {"": pool["cpus"]}),
            _gauge("gnomon_node_claimed_cores", "Cores that Shadows have.", {"": pool["claimed_cores"]}),
            _gauge("gnomon_node_claimed_bytes", "Memory that was claimed for Shadows.", {"": claimed_bytes}),
            _gauge("gnomon_node_bodies", "Bodies that have come to the coordinator.", {"": len(state["bodies"])}),
            _gauge(
                "gnomon_node_shadows",
                "Shadows of this node's pool by state.",
                {f'{{state="{state}"}}': states[state] for state in State},
            ),
        )
    )


def _gauge(name: str, about: str, values: Mapping[str, int]) -> str:
    """A gauge: its values by their labels in Prometheus's notation."""
    return f"# HELP {name} {about}\n# TYPE {name} gauge\n" + "".join(f"{name}{each} {value}\n" for each, value in values.items())
