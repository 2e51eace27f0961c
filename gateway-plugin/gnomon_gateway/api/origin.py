"""Protection against cross-site requests and DNS rebinding: control routes serve only this gateway's names and pages.

A browser sends to 127.0.0.1 any request that a page makes. Three headers that a page cannot forge identify such a request: `Host`
(a rebound name is not the gateway's), `Origin` (that of a foreign page), and `Sec-Fetch-Site`. Other clients send neither of the
last two. Behind another gateway, whose pages are trusted too, `X-Forwarded-Host` is the name by which that gateway was called; no
page can set that either.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from gnomon_core.errors import GnomonError
from gnomon_gateway.api.auth import is_loopback

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_OWN_SITES = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class HostRule:
    """The names that this gateway answers to.

    `any_address` also accepts every IP address: a listener on all interfaces has many, and an address cannot be rebound.
    `behind` takes pages of the host that a gateway in front was called by for ours.
    """

    names: frozenset[str]
    any_address: bool = False
    behind: bool = False

    def check(self, host: str | None, origin: str | None, fetch_site: str | None, forwarded_host: str | None = None) -> None:
        """Let our own requests pass.

        Raises:
            GnomonError: 403 `foreign_host` or `foreign_origin`.

        """
        if not self._is_ours(host):
            raise GnomonError(
                403,
                "foreign_host",
                f"This gateway does not answer to the host {(host or '')[:100]!r}.",
                f"Use one of {', '.join(sorted(self.names))}, or start it with this name among its allowed hosts.",
            )
        if fetch_site is not None and fetch_site.strip().lower() not in _OWN_SITES:
            raise _foreign_page()
        ours = [host] if forwarded_host is None or not self.behind else [host, forwarded_host]
        if origin is not None and _authority(origin) not in [(name or "").strip().lower() for name in ours]:
            raise _foreign_page()

    def _is_ours(self, host: str | None) -> bool:
        name = _host_name(host or "")
        return name is not None and (name in self.names or (self.any_address and _is_address(name)))


def host_rule(bound_host: str, allowed: Iterable[str] = (), *, behind: bool = False) -> HostRule:
    """The rule of a gateway that listens on `bound_host`; `allowed` are more names, as a proxy in front may use."""
    names = {*LOOPBACK_NAMES, *(name.strip().strip("[]").lower() for name in allowed)}
    everywhere = _is_address(bound_host) and ipaddress.ip_address(bound_host).is_unspecified
    if bound_host and not everywhere:
        names.add(bound_host.strip("[]").lower())
    any_address = everywhere or not (bound_host and is_loopback(bound_host))
    return HostRule(frozenset(names - {""}), any_address=any_address, behind=behind)


def _host_name(host: str) -> str | None:
    """The name in a Host header without its port; None for anything malformed."""
    try:
        parts = urlsplit(f"//{host.strip()}")
        _ = parts.port
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc or not parts.hostname:
        return None
    return parts.hostname


def _authority(origin: str) -> str | None:
    """host:port of an Origin; None for `null` and for schemes that are not the web's."""
    try:
        parts = urlsplit(origin.strip().lower())
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") and not parts.path else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _foreign_page() -> GnomonError:
    return GnomonError(
        403,
        "foreign_origin",
        "A page of another site may not use this gateway's control routes.",
        "Call it with gnomon, faas-cli or curl, or from a page that this gateway served.",
    )
