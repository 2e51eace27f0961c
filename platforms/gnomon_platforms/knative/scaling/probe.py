"""Whether requests to a Revision come to an activator by now: its public Service is asked, and who answers says who it is.

The question goes to the Service's address in the cluster, by the port of the Revision's protocol, with the headers by which
Knative's data plane knows a probe; an activator answers `activator` and wakes nothing by it.

Each question has a connection of its own. Who gets it is decided when it is made, and stays so, wherever the Service leads by
then: one that was made a moment too early, and kept, would bring the answer of the pod for ever.
"""

from __future__ import annotations

from gnomon_core.addresses import http_url
from gnomon_platforms.knative.scaling.asking import asked

HEADERS = {"K-Network-Probe": "activator", "User-Agent": "Knative-Autoscaling-Probe"}
ANSWER = b"activator"
PORTS = {"http1": 80, "h2c": 81}
PATIENCE_S = 1.0
MOST_BYTES = 1024


async def proxied(address: str, protocol: str) -> bool:
    """Whether an activator has answered at a Service's address."""
    import aiohttp  # noqa: PLC0415 - only who runs a cluster's autoscaler needs it

    url = http_url(address, PORTS.get(protocol, 80), "/healthz")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), trust_env=False) as session:
        answer = await asked(session, url, most_bytes=MOST_BYTES, patience_s=PATIENCE_S, headers=HEADERS)
    return answer is not None and answer.strip() == ANSWER
