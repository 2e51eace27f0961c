"""The node's state as numbers, in Prometheus's text format: a page of seven figures needs no library of its own in this image.

Nothing here names a function or a pod: whoever reads it needs no token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gnomon_coordinator.node.shadows import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def page(state: Mapping[str, Any]) -> str:
    """The page for what `GET /v1/state` tells."""
    pool, shadows = state["pool"], [row for row in state["shadows"] if not row["elsewhere"]]
    states = Counter(row["state"] for row in shadows)
    claimed_bytes = sum(row["memory_bytes"] for row in shadows if row["state"] != State.GONE)
    return "".join(
        (
            _gauge("gnomon_node_pool_ready", "Whether the pool can make Shadows.", {"": int(pool["ready"])}),
            _gauge("gnomon_node_containers", "Empty containers in the pool.", {"": pool["containers"]}),
            _gauge("gnomon_node_cpus", "Processors that Shadows may have.", {"": pool["cpus"]}),
            _gauge("gnomon_node_claimed_cores", "Cores that Shadows have.", {"": pool["claimed_cores"]}),
            _gauge("gnomon_node_claimed_bytes", "Memory that was claimed for Shadows.", {"": claimed_bytes}),
            _gauge("gnomon_node_bodies", "Bodies that have come to the coordinator.", {"": len(state["bodies"])}),
            _gauge(
                "gnomon_node_shadows",
                "Shadows of this node's pool by state.",
                {f'{{state="{one}"}}': states[one] for one in State},
            ),
        )
    )


def _gauge(name: str, about: str, values: Mapping[str, int]) -> str:
    """One figure: its values by their labels, as they are written."""
    return f"# HELP {name} {about}\n# TYPE {name} gauge\n" + "".join(f"{name}{each} {value}\n" for each, value in values.items())
