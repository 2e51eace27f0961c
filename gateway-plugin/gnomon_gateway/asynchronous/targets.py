"""Where a callback may go: only to hosts that the operator listed, and only to the address that was looked at.

A URL from a stranger must not make the gateway call what the stranger cannot reach (server-side request forgery). So the host
must be on the allow-list as it is written; its name is resolved once for each delivery, every address found must be public unless
the list names that very address, and the connection goes to that address and nowhere else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from gnomon_core.addresses import bracketed, host_and_port
from gnomon_core.errors import GnomonError, bad_request

SETTING = "--callback-host"
MAX_URL_LENGTH = 2048
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9]([-a-z0-9_]{0,61}[a-z0-9])?\.)*[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
# Printable ASCII without what readers of URLs disagree about.
_URL = re.compile(r"https?://[!#-;=?-\[\]_a-z~A-Z]+")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Target:
    """A callback's place: a listed host and port, and what to ask for there."""

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
        """The place that a callback URL names.

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
    """A name in lower case or an address in its one usual form; None for anything that others might read differently."""
    try:
        return host if str(ipaddress.ip_address(host)) == host else None
    except ValueError:
        last = host.rpartition(".")[2]
        # 2130706433, 0x7f.1 and 0177.1 are 127.0.0.1 to some resolvers.
        return host if _NAME.fullmatch(host) and not _NUMERIC.fullmatch(last) else None


def _is_public(address: Address) -> bool:
    """Whether an address is on the Internet, also inside the IPv6 forms that carry an IPv4 address."""
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
