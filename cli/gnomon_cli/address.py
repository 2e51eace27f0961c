"""Which gateway a command talks to, decided as faas-cli decides it.

The `--gateway` flag, then the stack file's `provider.gateway` unless that is the usual address, then OPENFAAS_URL, then
http://127.0.0.1:8080. The address is lower-cased, loses a slash at its end and gains http:// where it names no scheme.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_GATEWAY = "http://127.0.0.1:8080"
URL_VARIABLE = "OPENFAAS_URL"


def gateway_url(flag: str, stack: str, environment: Mapping[str, str]) -> str:
    """The gateway's address. A flag always wins, also one that names the usual address."""
    named = stack if stack != DEFAULT_GATEWAY else ""
    url = (flag or named or environment.get(URL_VARIABLE, "") or DEFAULT_GATEWAY).rstrip("/").lower()
    return url if "://" in url else f"http://{url}"
