"""Telling a caller that its asynchronous call is done: one POST of the answer, tried a few times, never redirected."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gnomon_core.errors import GnomonError
from gnomon_gateway.asynchronous.calls import Call
from gnomon_gateway.asynchronous.invocation import FunctionAnswer
from gnomon_gateway.asynchronous.targets import CallbackHosts, Target

TOTAL_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
MAX_TRIES = 5
MIN_WAIT_S = 1.0
MAX_WAIT_S = 60.0
_PRINTABLE = re.compile("[ -~]+")
_SUCCESS = range(200, 300)
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host."""

_log = logging.getLogger(__name__)


class Callbacks:
    """Delivers answers to the hosts that are allowed."""

    def __init__(self, hosts: CallbackHosts, chance: Random, resolve: Resolve | None = None) -> None:
        self._hosts = hosts
        self._chance = chance
        self._resolve = resolve or _system_resolve
        self.delivered = 0
        self.failed = 0

    def check(self, url: str) -> None:
        """Refuse a URL that can never be called.

        Raises:
            GnomonError: 400 `callback_not_allowed`.

        """
        self._hosts.target(url)

    def host(self, url: str) -> tuple[str, int]:
        """Whose turn it is: callbacks to one host wait for each other only."""
        try:
            return self._hosts.target(url).authority
        except GnomonError:
            return "", 0

    async def deliver(self, call: Call, answer: FunctionAnswer, duration_s: float) -> float | None:
        """Try to deliver once. Returns the seconds to wait before the next try, None when it is delivered or given up."""
        try:
            status = await self._post(self._hosts.target(call.callback_url), call, answer, duration_s)
            problem, again = f"it answered {status}", status in _LATER
            if status in _SUCCESS:
                self.delivered += 1
                return None
        except GnomonError as refused:
            problem, again = str(refused), False
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            problem, again = f"{type(error).__name__}: {error}", True
        if again and call.tried + 1 < MAX_TRIES:
            return min(MAX_WAIT_S, MIN_WAIT_S * 2.0**call.tried) * self._chance.uniform(0.5, 1.0)
        self.failed += 1
        _log.warning("The callback of call %s of %s is given up: %s", call.call_id, call.function, problem)
        return None

    async def _post(self, target: Target, call: Call, answer: FunctionAnswer, duration_s: float) -> int:
        address = await self._address(target)
        connector = aiohttp.TCPConnector(resolver=_Pinned(address), use_dns_cache=False, force_close=True, limit=1)
        timeout = aiohttp.ClientTimeout(total=TOTAL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
            session.post(
                _url(target), data=answer.body, headers=_headers(call, answer, duration_s), allow_redirects=False
            ) as response,
        ):
            # The body is not read: nobody asked for it, and it may have no end.
            return response.status

    async def _address(self, target: Target) -> str:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            addresses = await self._resolve(target.host, target.port)
        if not addresses:
            raise OSError(f"{target.host} has no address")
        for address in addresses:
            self._hosts.check_address(target, address)
        return addresses[0]


class _Pinned(AbstractResolver):
    """Answers every question with the one address that was checked."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        del family
        return [
            {
                "hostname": host,
                "host": self._address,
                "port": port,
                "family": socket.AF_INET6 if ":" in self._address else socket.AF_INET,
                "proto": socket.IPPROTO_TCP,
                "flags": socket.AI_NUMERICHOST,
            }
        ]

    async def close(self) -> None:
        pass


async def _system_resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _url(target: Target) -> URL:
    path, _, query = target.path_and_query.partition("?")
    return URL.build(scheme=target.scheme, host=target.host, port=target.port, path=path, query_string=query, encoded=True)


def _headers(call: Call, answer: FunctionAnswer, duration_s: float) -> dict[str, str]:
    content_type = answer.header("Content-Type") or ""
    return {
        "Content-Type": content_type if _PRINTABLE.fullmatch(content_type) else "application/octet-stream",
        "X-Call-Id": call.call_id,
        "X-Function-Name": str(call.function),
        "X-Function-Status": str(answer.status),
        "X-Duration-Seconds": f"{duration_s:f}",
        # It is sent for somebody else: also where its target is allowed, it must not count as the gateway's own request.
        "Via": "1.1 gnomon",
    }
