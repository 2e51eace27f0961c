"""Callbacks of asynchronous calls: one POST of the answer to an allowed host, retried a few times, never redirected.

The operator lists the hosts that may be called. A name on the list must resolve to a public address, unless that address is
listed itself; the connection is pinned to the address that was checked, so that DNS cannot change it in between.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gnomon_core.addresses import bracketed, host_and_port
from gnomon_core.errors import GnomonError, bad_request
from gnomon_gateway.asynchronous.calls import Call, FunctionAnswer

TOTAL_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
MAX_TRIES = 5
MIN_WAIT_S = 1.0
MAX_WAIT_S = 60.0
_PRINTABLE = re.compile("[ -~]+")
_SUCCESS = range(200, 300)
_VARIANT = ("X-Gnomon-Variant", "X-Gnomon-Nearest", "X-Gnomon-Degraded-Accuracy")
"""The headers of an answer that say which variant of an application gave it."""
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host."""

_log = logging.getLogger(__name__)


class Callbacks:
    """The delivery of answers to the allowed hosts."""

    def __init__(self, hosts: CallbackHosts, rng: Random, resolve: Resolve | None = None) -> None:
        self._hosts = hosts
        self._rng = rng
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
        """Host and port of a callback, the key of its lane: callbacks to one host wait only for each other."""
        try:
            return self._hosts.target(url).authority
        except GnomonError:
            return "", 0

    async def deliver(self, call: Call, answer: FunctionAnswer, duration_s: float) -> float | None:
        """Try to deliver once. Returns the back-off before the next attempt in seconds; None if delivered or abandoned."""
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
            return min(MAX_WAIT_S, MIN_WAIT_S * 2.0**call.tried) * self._rng.uniform(0.5, 1.0)
        self.failed += 1
        _log.warning("callback of call %s of %s abandoned: %s", call.call_id, call.function, problem)
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
            # The response's body is not read: it is not needed, and may be endless.
            return response.status

    async def _address(self, target: Target) -> str:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            addresses = await self._resolve(target.host, target.port)
        if not addresses:
            raise OSError(f"{target.host} has no address")
        # All addresses, not only the one that is used: a name with one private address is refused (DNS rebinding).
        for address in addresses:
            self._hosts.check_address(target, address)
        return addresses[0]


class _Pinned(AbstractResolver):
    """A resolver that returns the checked address for every name."""

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
    variants = {name: value for name in _VARIANT if (value := answer.header(name)) is not None and _PRINTABLE.fullmatch(value)}
    return variants | {
        "Content-Type": content_type if _PRINTABLE.fullmatch(content_type) else "application/octet-stream",
        "X-Call-Id": call.call_id,
        "X-Function-Name": str(call.function),
        "X-Function-Status": str(answer.status),
        "X-Duration-Seconds": f"{duration_s:f}",
        # The gateway sends this on a client's behalf: the target must not mistake it for the gateway's own request.
        "Via": "1.1 gnomon",
    }


SETTING = "--callback-host"
MAX_URL_LENGTH = 2048
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9]([-a-z0-9_]{0,61}[a-z0-9])?\.)*[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
# Printable ASCII without the characters that URL parsers treat differently.
_URL = re.compile(r"https?://[!#-;=?-\[\]_a-z~A-Z]+")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a callback: a listed host and port, with the path."""

    scheme: str
    host: str
    port: int
    path_and_query: str

    @property
    def authority(self) -> tuple[str, int]:
        return self.host, self.port


class CallbackHosts:
    """The allow-list. An entry is `host` (the scheme's own port) or `host:port`; a host is a name or a literal address."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._listed = frozenset(_read_entry(entry) for entry in entries if entry.strip())

    def target(self, url: str) -> Target:
        """The target of a callback URL.

        Raises:
            GnomonError: 400 `callback_not_allowed`, naming the setting.

        """
        target = _read_url(url)
        if not self._lists(target.host, target.port, target.scheme):
            raise _not_allowed(f"{host_and_port(target.host, target.port)} is not on the list of callback hosts", url)
        return target

    def check_address(self, target: Target, address: str) -> None:
        """Refuse an address that a name resolved to.

        Raises:
            GnomonError: 400 `callback_not_allowed`.

        """
        found = ipaddress.ip_address(address)
        if not _is_public(found) and not self._lists(str(found), target.port, target.scheme):
            raise _not_allowed(
                f"{bracketed(target.host)} is at {address}, which is not public and not listed itself", target.host
            )

    def _lists(self, host: str, port: int, scheme: str) -> bool:
        return (host, port) in self._listed or (port == _PORTS[scheme] and (host, None) in self._listed)


def _read_entry(entry: str) -> tuple[str, int | None]:
    text = entry.strip()
    try:
        parts = urlsplit(f"//{text}")
        host, port = _canonical_host(parts.hostname or ""), parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.netloc != text or "@" in text:
        raise GnomonError(
            400,
            "invalid_setting",
            f"{SETTING} has {text[:100]!r}.",
            "List hosts as name, name:port, 10.0.0.1:port or [::1]:port.",
        )
    return host, port


def _read_url(url: str) -> Target:
    if len(url) > MAX_URL_LENGTH or not _URL.fullmatch(url):
        raise _not_allowed("it is not a plain http or https URL", url)
    try:
        parts = urlsplit(url)
        host, port = _canonical_host(parts.hostname or ""), parts.port
    except ValueError:
        raise _not_allowed("it cannot be read", url) from None
    if host is None or "@" in parts.netloc:
        raise _not_allowed("its host is neither a name nor a plain address", url)
    path = parts.path or "/"
    return Target(parts.scheme, host, port or _PORTS[parts.scheme], f"{path}?{parts.query}" if parts.query else path)


def _canonical_host(host: str) -> str | None:
    """A name in lower case or an address in canonical form; None for a host that resolvers may interpret differently."""
    try:
        return host if str(ipaddress.ip_address(host)) == host else None
    except ValueError:
        last = host.rpartition(".")[2]
        # Some resolvers interpret 2130706433, 0x7f.1 and 0177.1 as 127.0.0.1.
        return host if _NAME.fullmatch(host) and not _NUMERIC.fullmatch(last) else None


def _is_public(address: Address) -> bool:
    """Return whether an address is on the Internet, also inside the IPv6 forms that carry an IPv4 address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(inner)
    return address.is_global and not address.is_multicast


def _not_allowed(reason: str, url: str) -> GnomonError:
    return bad_request(
        "callback_not_allowed",
        f"X-Callback-Url {url[:200]!r} is refused: {reason}.",
        f"The operator lists the hosts that may be called back with {SETTING} host[:port]; by default there are none.",
    )
