"""A replica's own answers to requests that are another's, written as the route that was asked for writes errors."""

from __future__ import annotations

from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_gateway.server.exchange import Exchange
from gnomon_gateway.v2 import routes as v2


def refuse(exchange: Exchange, error: GnomonError, lines: bytes) -> None:
    """One of our errors, as the route that was asked for writes them."""
    if exchange.path.startswith(v2.PREFIX):
        v2.refuse(exchange, error)
    else:
        exchange.fail(error, lines)


async def refuse_asgi(send: Any, error: GnomonError, *, close: bool = False) -> None:
    """One of our errors, as the answer of an ASGI application; the last one on its connection with `close`."""
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers().items()]
    body = error.body()
    headers += [(b"content-length", b"%d" % len(body)), *([(b"connection", b"close")] if close else [])]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def replica_lost() -> GnomonError:
    """502: it may have been executed."""
    return GnomonError(
        502,
        "replica_lost",
        "The replica of the gateway that has this function's queue ended before it answered.",
        "The request may have been executed; send it again only if that does no harm.",
    )


def no_owner() -> GnomonError:
    """503: it was not executed."""
    return GnomonError(
        503,
        "no_owner",
        "No replica of the gateway took this request within its deadline. It was not executed.",
        "Send it again; if that does not help, see whether the gateway has a leader.",
        retry_after_s=1.0,
    )


def too_many_forwarded(requests: int, most_bytes: int) -> GnomonError:
    """503: there is no room for one more."""
    return GnomonError(
        503,
        "too_many_forwarded",
        f"{requests} requests or {most_bytes} bytes wait here for other replicas of the gateway.",
        "Send it again later.",
        retry_after_s=1.0,
    )


def no_leader() -> GnomonError:
    """503: it was not carried out."""
    return GnomonError(
        503,
        "no_leader",
        "No replica of the gateway leads. Functions are served; nothing can be deployed or changed now.",
        "Try again; if that does not help, see whether the API server is reached.",
        retry_after_s=1.0,
    )


def leader_lost() -> GnomonError:
    """502: it may have been carried out."""
    return GnomonError(
        502,
        "leader_lost",
        "The replica of the gateway that leads ended before it answered.",
        "See what it has done, and try again.",
    )
