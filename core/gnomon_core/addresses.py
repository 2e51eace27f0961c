"""Host and port as text: an IPv6 address stands in brackets, because it has colons of its own (RFC 3986, 3.2.2).

    a user        10.0.0.1   fd00::1   [fd00::1]
    sockets       10.0.0.1   fd00::1             unbracketed
    URLs          10.0.0.1   [fd00::1]           bracketed, host_and_port, http_url

User input is parsed once, at its entry.
"""

from __future__ import annotations

import ipaddress

EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
"""The wildcard address: a listener there accepts connections at every address of its machine."""


def unbracketed(host: str) -> str:
    """A name or an address as sockets take it, with or without brackets before: `fd00::1` of `[fd00::1]`.

    Raises:
        ValueError: it is neither, as where a port follows.

    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if bare != host or ":" in bare:
        ipaddress.IPv6Address(bare)
    return bare


def bracketed(host: str) -> str:
    """A name or an address as it stands in a URL: `10.0.0.1`, `[fd00::1]`."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def host_and_port(host: str, port: int) -> str:
    """Join host and port: `10.0.0.1:8080`, `[fd00::1]:8080`."""
    return f"{bracketed(host)}:{port}"


def http_url(host: str, port: int, path: str = "") -> str:
    """The URL of a server, or of a path on it: `http://[fd00::1]:8080/healthz`."""
    return f"http://{host_and_port(host, port)}{path}"


def from_this_machine(bound: str) -> str:
    """The host at which this machine reaches a listener that is bound to `bound`."""
    return "127.0.0.1" if bound in EVERYWHERE else bound
