"""The plan of a Revision's buffer in its PodAutoscaler's status: the autoscaler class writes it, gateways read it.

    status:
      annotations:
        gnomon/buffer: '{"policy": "batch", "max_batch": 8, "max_wait_s": 0.05}'

Knative provides `status.annotations` for a reconciler's data beyond conditions. The plan names its policy: it is ignored once the
Revision has another policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_core import scaling as buffer_plans
from gnomon_core.scaling import SetBufferPlan
from gnomon_core.settings import PREFIX

ANNOTATION = f"{PREFIX}buffer"
MOST_BYTES = 1000
"""The largest annotation that is parsed: longer than any plan."""


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """A plan, and the policy that has made it."""

    policy: str
    plan: SetBufferPlan


def with_buffer_plan(status: Mapping[str, Any], buffer: BufferStatus | None) -> dict[str, Any]:
    """Return a PodAutoscaler's status with the buffer plan as annotation, or without one; other annotations are kept."""
    annotations = {name: text for name, text in (status.get("annotations") or {}).items() if name != ANNOTATION}
    if buffer is not None:
        annotations[ANNOTATION] = json.dumps({"policy": buffer.policy, **buffer_plans.plan_to_json(buffer.plan)})
    rest = {name: value for name, value in status.items() if name != "annotations"}
    return {**rest, "annotations": annotations} if annotations else rest


def buffer_of(status: Mapping[str, Any]) -> BufferStatus | None:
    """The buffer plan in a PodAutoscaler's status; None if there is no valid one."""
    text = (status.get("annotations") or {}).get(ANNOTATION)
    if not isinstance(text, str) or len(text) > MOST_BYTES:
        return None
    try:
        document = json.loads(text)
        return BufferStatus(str(document["policy"]), buffer_plans.plan_from_json(document))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None
