"""Whether requests to a Revision come to an activator by now: its public Service is asked, and who answers says who it is.

The question goes to the Service's address in the cluster, by the port of the Revision's protocol, with the headers by which
Knative's data plane knows a probe; an activator answers `activator` and wakes nothing by it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

HEADERS = {"K-Network-Probe": "activator", "User-Agent": "Knative-Autoscaling-Probe"}
ANSWER = b"activator"
PORTS = {"http1": 80, "h2c": 81}
PATIENCE_S = 1.0
_OK = 200


async def proxied(session: aiohttp.ClientSession, address: str, protocol: str) -> bool:
    """Whether an activator has answered at a Service's address."""
    import aiohttp  # noqa: PLC0415 - comes with the session

    host = f"[{address}]" if ":" in address else address
    url = f"http://{host}:{PORTS.get(protocol, 80)}/healthz"
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with session.get(url, headers=HEADERS, timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as answer:
            return answer.status == _OK and (await answer.read()).strip() == ANSWER
    return False
