"""Who serves without ASGI: what an exchange calls back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gnomon_gateway.server.exchange import Exchange


class Owner(Protocol):
    """Who takes the request of an exchange."""

    def received(self, body: bytes | memoryview) -> None:
        """The whole body is here."""
        ...

    def left(self) -> None:
        """The client has gone; nothing can be answered any more."""
        ...


class HotRoutes(Protocol):
    """The routes that are served without ASGI."""

    def begin(self, exchange: Exchange) -> None:
        """The headers are here. Answer at once, or `accept` the body."""
        ...
