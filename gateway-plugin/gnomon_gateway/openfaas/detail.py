"""`/gnomon/functions/{name}`: a function's Bodies and Shadows, and what they do together."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon_core.decisions import DecisionRecord
from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.profiles import ModelProfile
from gnomon_gateway.openfaas.control import Control, Handlers, unknown_function
from gnomon_gateway.openfaas.documents import key_in_path
from gnomon_gateway.service import FunctionDetail


class DetailRoutes:
    """The handler of what is behind a function's replicas."""

    def __init__(self, control: Control) -> None:
        self._functions = control.functions

    def handlers(self) -> Handlers:
        return {"/gnomon/functions/{name}": {"GET": self.detail}}

    async def detail(self, request: Request) -> Response:
        key = key_in_path(request)
        found = self._functions.detail(key)
        if found is None:
            raise unknown_function(key)
        last = self._functions.decisions(key, 1)
        return JSONResponse(_document(found, last[0] if last else None))


def _document(found: FunctionDetail, last: DecisionRecord | None) -> dict[str, Any]:
    """`scaling` is the policy that the function asks for, `scaling_in_force` the one that made the `last` decision, and why."""
    spec, pairs = found.status.spec, found.pairs
    profile = found.profile
    return {
        "name": spec.key.name,
        "namespace": spec.key.namespace,
        "model": spec.settings.model,
        "scaling": spec.settings.autoscaler,
        "scaling_in_force": {"policy": last.policy, "reason": last.reason, "error": last.error} if last is not None else None,
        "scheduling": found.scheduler,
        "slo_ms": round(1000 * spec.settings.slo_s, 3),
        "replicas": found.status.replicas,
        "available_replicas": found.status.available_replicas,
        "notice": found.notice,
        "version": found.version,
        "problem": _problem(found),
        "bodies": [_body(one, found) for one in found.instances if one.kind is InstanceKind.BODY],
        "shadows": [_shadow(one, profile) for one in found.instances if one.kind is InstanceKind.SHADOW],
        "pairs": {
            "batches": pairs.batches,
            "offloaded_samples": pairs.offloaded,
            "misses": pairs.misses,
            "hand_overs": {outcome: count for outcome, count in pairs.hand_overs.items() if count},
            "waited_s": round(pairs.waited_s, 6),
            "predicted_s": round(pairs.predicted_s, 6),
            "measured_s": round(pairs.measured_s, 6),
        },
        "profile": dict(profile.provenance) if profile is not None else None,
    }


def _problem(found: FunctionDetail) -> dict[str, Any] | None:
    """Why instances are missing; `final` says that the function is not expected to start by itself."""
    problem = found.status.problem
    if problem is None:
        return None
    return {"code": problem.code, "message": problem.message, "hint": problem.hint, "final": found.cannot_start}


def _instance(one: Instance) -> dict[str, Any]:
    return {
        "id": one.id,
        "state": one.state.value,
        "version": one.version,
        "node": one.node,
        "cores": one.cores,
        "memory_bytes": one.memory_bytes,
    }


def _body(one: Instance, found: FunctionDetail) -> dict[str, Any]:
    """`shadows` are all that it works with, `shadow` the first of them."""
    return _instance(one) | {
        "busy": one.busy,
        "in_flight": one.in_flight,
        "max_batch": found.largest.get(one.id),
        "shadow": one.partner,
        "shadows": list(one.shadows),
    }


def _shadow(one: Instance, profile: ModelProfile | None) -> dict[str, Any]:
    """`split[b - 1]` of a batch of b are the Shadow's; `parameter_share` is how much of the model it holds."""
    blocks = one.pair.blocks if one.pair is not None else ()
    document = _instance(one) | {
        "body": one.partner,
        "blocks": list(blocks),
        "split": list(one.pair.split) if one.pair is not None else [],
    }
    if profile is not None and blocks and blocks[-1] < len(profile.layers.blocks):
        layers = profile.layers
        held, whole = layers.parameter_bytes(blocks), layers.parameter_bytes()
        document |= {
            "block_names": [layers.blocks[number].name for number in blocks],
            "parameter_bytes": held,
            "parameter_share": round(held / whole, 4) if whole else 0.0,
        }
    return document
