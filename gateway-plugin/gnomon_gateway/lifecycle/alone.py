"""Functions whose policy makes Shadows, where no node can make any now: Bodies serve alone, and that is said.

What nodes can do changes while functions serve: a coordinator comes, is exchanged, or is not installed yet. So it is no reason to
refuse a function. Its policy makes Shadows as soon as a node says that it can.
"""

from __future__ import annotations

from gnomon_core.functions import FunctionSpec
from gnomon_core.lasting import Warns
from gnomon_gateway.lifecycle.surroundings import Surroundings

REASON = "BodiesAlone"
TEXT = "No node can make Shadows now: Bodies serve alone until a node's coordinator is connected."


def notice(around: Surroundings, spec: FunctionSpec) -> str:
    """What the function's users are to know; "" where it may have Shadows, or would have none."""
    wanting = around.makes_shadows(spec.settings) and not any(node.pairs for node in around.platform.nodes())
    return TEXT if wanting else ""


def say_if_alone(around: Surroundings, spec: FunctionSpec) -> None:
    """Say so in the function's log, and where the platform's own users look. Who leads does."""
    if not around.elsewhere.leads() or not notice(around, spec):
        return
    around.logs.append(spec.key, "", f"gnomon: {TEXT}")
    if isinstance(around.platform, Warns):
        around.platform.warn(str(spec.key), REASON, TEXT)
