"""The plan of a function's buffer as one process tells it another: whoever decides is not always whoever makes the batches.

    {"max_batch": 8, "max_wait_s": 0.05}

Several gateways of OpenFaaS hear it from the one that leads, those of Knative read it in their Revision's PodAutoscaler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gnomon_core.scaling import SetBufferPlan


def told(plan: SetBufferPlan) -> dict[str, Any]:
    """A plan as JSON."""
    return {"max_batch": plan.max_batch, "max_wait_s": plan.max_wait_s}


def heard(document: Mapping[str, Any]) -> SetBufferPlan:
    """The plan that was told.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: this is none.

    """
    max_batch, max_wait_s = int(document["max_batch"]), float(document["max_wait_s"])
    if max_batch < 1 or not 0.0 <= max_wait_s < math.inf:
        raise ValueError(f"no buffer has batches of {max_batch} after {max_wait_s} s")
    return SetBufferPlan(max_batch, max_wait_s)
