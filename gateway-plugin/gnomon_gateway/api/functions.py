"""The routes of functions.

`/system/functions`, `/system/function/{name}` and `/system/scale-function/{name}`: deploy, list, describe, scale and remove. A
response holds the fields of the deployment as they were sent, and no others: the certifier compares them one by one. CPU usage
is in OpenFaaS's unit: thousandths of a core since the last request.

`/gnomon/functions/{name}`: a function's Bodies and Shadows, and the metrics of its pairs.

**A stock OpenFaaS gateway in front of this one** scales functions too: by alerts, by hand, and from zero. Its Community rule adds
replicas while a function has more than five requests a second, returns to the minimum after that, and never requests more than
five. The function's own policy reads the queue and has no such bound: if alerts counted as an operator's requests, they would
stop instances under load. So the function's setting decides which of the two scales:

    no instance is ready, or gnomon/autoscaler is `fixed` ▶ applied: that is how a gateway scales from zero
    any other policy ▶ ignored; one line in the function's log, and one in the gateway's

Alerts and manual scaling cannot be told apart here. The response is 202 either way, because an AlertManager repeats refused ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon_core.clock import rfc3339
from gnomon_core.errors import bad_request
from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.functions import PROBLEM, FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import Usage
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import DecisionRecord, action_to_json
from gnomon_core.settings import refuse_misspelt
from gnomon_gateway.api.control import Control
from gnomon_gateway.api.requests import Handlers, flag_in_query, key_in_path, namespace_in_query, read_object, text_field
from gnomon_gateway.asynchronous.queue import read_retry_rule
from gnomon_gateway.functions.service import FunctionDetail, FunctionStatus, unknown_function


class UsageMeter:
    """The CPU rate from cumulative CPU seconds; 0 for the first request, which has no interval yet."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._last: dict[FunctionKey, tuple[float, float]] = {}

    def document(self, key: FunctionKey, usage: Usage) -> Mapping[str, float]:
        """OpenFaaS's FunctionUsage."""
        now_s = self._now_s()
        last_s, last_cpu_s = self._last.get(key, (now_s, usage.cpu_s))
        self._last[key] = (now_s, usage.cpu_s)
        interval_s = now_s - last_s
        # 0.25 CPU seconds in an interval of 1 s are 250 thousandths of a core.
        cpu = 1000 * max(0.0, usage.cpu_s - last_cpu_s) / interval_s if interval_s > 0 else 0.0
        return {"cpu": round(cpu, 3), "totalMemoryBytes": usage.memory_bytes}

    def forget(self, key: FunctionKey) -> None:
        self._last.pop(key, None)


class DetailRoutes:
    """The handler of a function's instances: Bodies, Shadows and pairs."""

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


def _document(detail: FunctionDetail, last: DecisionRecord | None) -> dict[str, Any]:
    """The JSON document. `scaling` is the configured policy, `scaling_in_force` the one that made the `last` decision."""
    spec, pairs = detail.status.spec, detail.pairs
    profile = detail.profile
    return {
        "name": spec.key.name,
        "namespace": spec.key.namespace,
        "model": spec.settings.model,
        "scaling": spec.settings.autoscaler,
        "scaling_in_force": {"policy": last.policy, "reason": last.reason, "error": last.error} if last is not None else None,
        "scheduling": detail.scheduler,
        "slo_ms": round(1000 * spec.settings.slo_s, 3),
        "replicas": detail.status.replicas,
        "available_replicas": detail.status.available_replicas,
        "notice": detail.notice,
        "engine": detail.engine,
        "version": detail.version,
        "problem": _problem(detail),
        "bodies": [_body(instance, detail) for instance in detail.instances if instance.kind is InstanceKind.BODY],
        "shadows": [_shadow(instance, profile) for instance in detail.instances if instance.kind is InstanceKind.SHADOW],
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


def _problem(detail: FunctionDetail) -> dict[str, Any] | None:
    """The reason why instances are missing; `final` says that the function is not expected to start by itself."""
    problem = detail.status.problem
    if problem is None:
        return None
    return {"code": problem.code, "message": problem.message, "hint": problem.hint, "final": detail.cannot_start}


def _instance(instance: Instance) -> dict[str, Any]:
    return {
        "id": instance.id,
        "state": instance.state.value,
        "version": instance.version,
        "node": instance.node,
        "cores": instance.cores,
        "memory_bytes": instance.memory_bytes,
    }


def _body(body: Instance, detail: FunctionDetail) -> dict[str, Any]:
    """A Body as JSON. `shadows` are all its Shadows, `shadow` the first of them; `idle_cores` only if it borrows the others."""
    document = _instance(body) | {
        "busy": body.busy,
        "in_flight": body.in_flight,
        "max_batch": detail.largest.get(body.id),
        "shadow": body.partner,
        "shadows": list(body.shadows),
    }
    return document if body.idle_cores is None else document | {"idle_cores": body.idle_cores}


def _shadow(shadow: Instance, profile: ModelProfile | None) -> dict[str, Any]:
    """A Shadow as JSON. Of a batch of b samples it gets `split[b - 1]`; `parameter_share` is its share of the model."""
    blocks = shadow.pair.blocks if shadow.pair is not None else ()
    document = _instance(shadow) | {
        "body": shadow.partner,
        "blocks": list(blocks),
        "split": list(shadow.pair.split) if shadow.pair is not None else [],
    }
    if profile is not None and blocks and blocks[-1] < len(profile.layers.blocks):
        layers = profile.layers
        held_bytes, model_bytes = layers.parameter_bytes(blocks), layers.parameter_bytes()
        document |= {
            "block_names": [layers.blocks[number].name for number in blocks],
            "parameter_bytes": held_bytes,
            "parameter_share": round(held_bytes / model_bytes, 4) if model_bytes else 0.0,
        }
    return document


LEFT_TO_OTHERS = "fixed"
_LOG = logging.getLogger("gnomon.openfaas")


class ExternalScaling:
    """The rule for replica counts that an external gateway requests. `log` writes a line to the function's log."""

    def __init__(self, log: Callable[[FunctionKey, str, str], None]) -> None:
        self._log = log
        self._logged: dict[FunctionKey, str] = {}
        """The policy that each function had when the refusal was logged."""

    def accepts(self, status: FunctionStatus, replicas: int) -> bool:
        """Return whether to apply this number; a refusal is logged once for each policy of a function."""
        key, policy = status.spec.key, status.spec.settings.autoscaler
        if policy == LEFT_TO_OTHERS:
            return True
        if not status.available_replicas:
            # Scale from zero: twenty waiting requests each ask for one instance; only the first starts one.
            return replicas > status.replicas
        if replicas != status.replicas and self._logged.get(key) != policy:
            self._logged[key] = policy
            text = (
                f"the external gateway asks for {replicas} instances, which is ignored: the policy {policy} decides; "
                f"gnomon/autoscaler: {LEFT_TO_OTHERS} leaves the number to the external gateway"
            )
            self._log(key, "", f"gnomon: {text}")
            _LOG.warning("function %s: %s", key, text)
        return False

    def forget(self, key: FunctionKey) -> None:
        """Drop the state of a removed function."""
        self._logged.pop(key, None)


MAX_REPLICAS = 10_000
_ECHOED = (
    "envProcess", "envVars", "constraints", "secrets", "labels", "annotations", "limits", "requests", "readOnlyRootFilesystem",
)  # fmt: skip


async def _read_spec(request: Request) -> FunctionSpec:
    spec = read_deployment(await read_object(request))
    refuse_misspelt(spec.labels, spec.annotations)
    read_retry_rule(spec.annotations)
    return spec


class Functions:
    """The handlers of functions."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._meter = UsageMeter(control.now_s)
        self._external = ExternalScaling(control.logs.append) if control.behind and not control.provided else None

    def handlers(self) -> Handlers:
        return {
            "/system/functions": {"GET": self.list, "POST": self.deploy, "PUT": self.update, "DELETE": self.remove},
            "/system/function/{name}": {"GET": self.describe},
            "/system/scale-function/{name}": {"POST": self.scale},
        }

    async def list(self, request: Request) -> Response:
        namespace = self._control.namespaces.get(namespace_in_query(request)).name
        return JSONResponse([self._document(status) for status in self._control.functions.list(namespace)])

    async def deploy(self, request: Request) -> Response:
        spec = await _read_spec(request)
        with self._control.namespaces.using(spec.key.namespace):
            await self._control.functions.deploy(spec)
        return self._accepted(spec)

    async def update(self, request: Request) -> Response:
        spec = await _read_spec(request)
        with self._control.namespaces.using(spec.key.namespace):
            await self._control.functions.update(spec)
        return self._accepted(spec)

    async def remove(self, request: Request) -> Response:
        document = await read_object(request)
        name = text_field(document, "functionName")
        if not name:
            raise bad_request("invalid_field", "functionName is empty.", 'Send {"functionName": "name", "namespace": "…"}.')
        namespace = text_field(document, "namespace") or namespace_in_query(request)
        key = FunctionKey(name, namespace)
        await self._control.functions.remove(key)
        self._meter.forget(key)
        if self._external is not None:
            self._external.forget(key)
        return Response(status_code=202)

    async def describe(self, request: Request) -> Response:
        usage = flag_in_query(request, "usage")
        key = key_in_path(request)
        status = self._control.functions.status(key, usage=usage)
        if status is None:
            raise unknown_function(key)
        document = self._document(status)
        if status.problem is not None:
            # faas-cli shows annotations.
            document["annotations"] = {**document.get("annotations", {}), PROBLEM: status.problem.message}
        return JSONResponse(document)

    async def scale(self, request: Request) -> Response:
        document = await read_object(request)
        text_field(document, "serviceName")
        replicas = document.get("replicas")
        if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
            raise bad_request(
                "invalid_field",
                f"replicas has the invalid value {str(replicas)[:50]!r}.",
                f'Send {{"replicas": n}} with a whole number from 0 to {MAX_REPLICAS}.',
            )
        key = key_in_path(request, text_field(document, "namespace"))
        status = self._control.functions.status(key)
        # Behind a stock gateway or in front of a provider, the other side sets the number: an AlertManager repeats refused ones.
        if status is not None and not self._control.behind and not self._control.provided:
            _refuse_above_maximum(status, replicas)
        if self._external is None or status is None or self._external.accepts(status, replicas):
            await self._control.functions.scale(key, replicas)
        return Response(status_code=202)

    def _accepted(self, spec: FunctionSpec) -> Response:
        """202: the function is stored. `Location` is the URL that reports how its instances start.

        In front of a provider there is no such URL: the provider owns the replicas, and an instance here is a right to call one.
        """
        where = {} if self._control.provided else {"Location": f"/gnomon/functions/{spec.key}"}
        return Response(status_code=202, headers=where)

    def _document(self, status: FunctionStatus) -> dict[str, Any]:
        """A FunctionStatus as OpenFaaS writes it."""
        spec = status.spec
        document: dict[str, Any] = {"name": spec.key.name, "image": spec.image, "namespace": spec.key.namespace}
        document |= {field: spec.raw[field] for field in _ECHOED if field in spec.raw}
        document["labels"] = {**spec.labels, "faas_function": spec.key.name}
        document |= {
            "invocationCount": status.invocation_count,
            "replicas": status.replicas,
            "availableReplicas": status.available_replicas,
            "createdAt": rfc3339(status.created_at),
        }
        if status.usage is not None:
            document["usage"] = self._meter.document(spec.key, status.usage)
        return document


def _refuse_above_maximum(status: FunctionStatus, replicas: int) -> None:
    most = status.spec.settings.scale.max
    if replicas > most:
        raise bad_request(
            "above_maximum",
            f"replicas is {replicas}; {status.spec.key.name} may have at most {most}.",
            "Raise its label com.openfaas.scale.max and deploy it again, or ask for fewer.",
        )


DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000


class DecisionRoutes:
    """The handlers of decisions and policies."""

    def __init__(self, control: Control) -> None:
        self._functions = control.functions

    def handlers(self) -> Handlers:
        return {
            "/gnomon/functions/{name}/decisions": {"GET": self.decisions},
            "/gnomon/policies": {"GET": self.policies},
        }

    async def decisions(self, request: Request) -> Response:
        limit = _read_limit(request.query_params.get("limit", str(DEFAULT_LIMIT)))
        key = key_in_path(request)
        records = self._functions.decisions(key, limit)
        if records is None:
            raise unknown_function(key)
        return JSONResponse([_decision(record) for record in records])

    async def policies(self, _: Request) -> Response:
        known = self._functions.policies()
        return JSONResponse({"scaling": _listed(known.scaling), "scheduling": _listed(known.scheduling)})


def _read_limit(text: str) -> int:
    try:
        limit = int(text)
    except ValueError:
        limit = 0
    if not 1 <= limit <= MAX_LIMIT:
        raise bad_request(
            "invalid_query", f"limit has the invalid value {text[:100]!r}.", f"Use a whole number from 1 to {MAX_LIMIT}."
        )
    return limit


def _decision(record: DecisionRecord) -> dict[str, Any]:
    return {
        "at": rfc3339(record.at),
        "policy": record.policy,
        "reason": record.reason,
        "desired": record.desired,
        "error": record.error,
        "repeats": record.repeats,
        "actions": [action_to_json(action) for action in record.actions],
    }


def _listed(policies: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "description": policies[name]} for name in sorted(policies)]
