"""The gateway on Knative: serves every path, for the Revision that two headers name.

    Knative-Serving-Revision, Knative-Serving-Namespace ▶ function NAME.NAMESPACE ▶ the queue, with the path as it is

Routes set both, as for Knative's activators, and the autoscaler class routes only requests here that are to be buffered. An
ingress may send a request shortly before this gateway knows its Revision: it is held for a few seconds, and then refused.

Like an activator, the gateway answers Knative's probes itself, by the header `K-Network-Probe`: to `probe`, the hash of the
ingress's configuration, by which ingress controllers see that the configuration is served; to `activator`, its own name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gnomon_core.errors import GnomonError, bad_request
from gnomon_gateway.api.access import ANY
from gnomon_gateway.api.invocation import MAX_BODY_BYTES, FunctionRoutes
from gnomon_gateway.functions.function_runtime import FunctionDirectory
from gnomon_gateway.http.exchange import Exchange

REVISION_HEADER, NAMESPACE_HEADER = b"knative-serving-revision", b"knative-serving-namespace"
PROBE_HEADER, HASH_HEADER = b"k-network-probe", b"k-network-hash"
GATEWAY = b"gnomon-gateway"
"""The answer to the probe that activators answer by their name."""
HELD_S, LOOK_S = 5.0, 0.02
_METHODS = frozenset(method.encode() for method in ANY)


class RevisionApp:
    """The application of a `GatewayServer` on Knative. The ingress's forwarding headers are trusted."""

    prefixes = (b"/",)

    def __init__(self, directory: FunctionDirectory, *, max_body_bytes: int = MAX_BODY_BYTES, held_s: float = HELD_S) -> None:
        self._directory = directory
        self._max_body_bytes, self._held_s = max_body_bytes, held_s
        self._functions = FunctionRoutes(directory, max_body_bytes, lambda _exchange, _runtime: False, behind=True)

    def begin(self, exchange: Exchange) -> None:
        """Begin a request, whose headers have been received."""
        probe, name = header(exchange, PROBE_HEADER), named(exchange.headers)
        if probe:
            _answer_probe(exchange, probe)
        elif name is None:
            exchange.fail(bad_request("no_revision", "The request names no Revision.", "Send it to the service's URL."))
        elif exchange.method not in _METHODS:
            exchange.fail(
                GnomonError(405, "method_not_allowed", "A function does not support this method.", f"Use {', '.join(ANY)}.")
            )
        else:
            runtime = self._directory.lookup(name)
            if runtime is not None:
                self._functions.take(exchange, runtime, exchange.path)
            else:
                exchange.accept(_Held(exchange, self, name), self._max_body_bytes)

    async def known(self, name: str) -> bool:
        """Wait until a function of this name is served, at most `held_s`. Returns whether it is."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._held_s
        while self._directory.lookup(name) is None:
            if loop.time() >= end_s:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def refusal(self, name: str) -> GnomonError:
        """The error for a request whose Revision is unknown or cannot be served now."""
        refusal = self._directory.refusal(name)
        if refusal.status != 404:  # noqa: PLR2004 - it is known, and cannot be served now
            return refusal
        text = f"The gateway knows no Revision {name[:300]!r} that batches."
        return GnomonError(503, "no_such_revision", text, "Try again.", retry_after_s=1.0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond 400 to a request whose target is not a path, such as `OPTIONS *`."""
        del receive
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})


class _Held:
    """The owner of a request whose Revision is not known yet."""

    def __init__(self, exchange: Exchange, app: RevisionApp, name: str) -> None:
        self._exchange, self._app, self._name = exchange, app, name
        self._task: asyncio.Task[None] | None = None

    def received(self, body: bytes | memoryview) -> None:
        self._task = asyncio.get_running_loop().create_task(self._wait(body))

    def left(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, body: bytes | memoryview) -> None:
        if await self._app.known(self._name):
            self._exchange.restart(self._app, body)
        else:
            self._exchange.fail(self._app.refusal(self._name))


def header(exchange: Exchange, name: bytes) -> bytes:
    """The value of a header; empty where there is none."""
    return next((value for key, value in exchange.headers if key == name), b"")


def _answer_probe(exchange: Exchange, probe: bytes) -> None:
    """Answer as activators and queue-proxies do."""
    configuration = header(exchange, HASH_HEADER)
    if probe == b"probe" and configuration:
        exchange.respond(200, b"K-Network-Hash: %b\r\n" % configuration, b"")
    elif probe == b"activator":
        exchange.respond(200, b"content-type: text/plain\r\n", GATEWAY)
    else:
        text = "This probe is for another part of Knative, or has no K-Network-Hash."
        exchange.fail(bad_request("unexpected_probe", text, "Send K-Network-Probe: activator, or probe with a hash."))


def named(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The function of the Revision that these headers name; None where one of the two headers is missing."""
    found = {name: value for name, value in headers if name in (REVISION_HEADER, NAMESPACE_HEADER)}
    revision, namespace = found.get(REVISION_HEADER), found.get(NAMESPACE_HEADER)
    return f"{revision.decode('latin-1')}.{namespace.decode('latin-1')}" if revision and namespace else None
