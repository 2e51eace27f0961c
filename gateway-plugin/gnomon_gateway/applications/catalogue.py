"""The variants of registered models: which there are, the member function of each, and its numbers.

    registered model × engine × precision × cores ─▶ Candidate ─▶ member function APP--MODEL-ENGINE-PRECISION-CORES
                                                         └ profile, or MeasuredVariant ─▶ Variant, which queries may get

Everything here is a pure function of its arguments. A variant's cost is in cores in use: one instance costs its cores.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from gnomon_core.applications import POLICY, MeasuredVariant, RegisteredModel, architecture_of
from gnomon_core.engines import AUTO, FP32, PROGRAM, RUNNABLE, engine_name, split_name
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import Settings
from gnomon_core.variants import Variant

MEMBER_POLICY = "fixed+shadows"
"""The scaling policy of members where the application's decides: it holds the number that it is given, with Shadows until so many
instances have started."""
_MOST_NAME = 63
_DIGEST = 8
_MEMBER = "--"
_UNFIT = re.compile(r"[^a-z0-9]+")
_DISTINCT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*@[a-z0-9]+(/[a-z0-9]+)+")
"""Ids of variants of which no two have the same name for their functions: net-a@1, but not net_a@1 or net@a-1."""
_OF_ENDPOINT = frozenset({
    "gnomon/model", "gnomon/autoscaler", "gnomon/cores", "gnomon/engine", "gnomon/max-batch",
    "gnomon/precision", "gnomon/accuracy-floor",
})  # fmt: skip
_SCALE_MIN = "com.openfaas.scale.min"
_KEPT = {"com.openfaas.scale.zero-duration": "24h"}
"""Annotations of members under a joint policy: their instances end by the application's decision, not when idle."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a registered model, measured or not."""

    model: str
    engine: str
    precision: str
    cores: int

    @property
    def id(self) -> str:
        """The variant's id, which answers name in X-Gnomon-Variant."""
        return f"{self.model}/{self.engine}/{self.precision}/{self.cores}"

    @property
    def architecture(self) -> str:
        """The model's name without its version."""
        return architecture_of(self.model)


def engines(endpoint: FunctionSpec) -> tuple[str, ...]:
    """The engines, with their precisions, that may run the models: the one that the endpoint names, else all.

    The precision fp32 is what an endpoint has that names none, so that it means all of them: queries say what accuracy they need.
    """
    settings = endpoint.settings
    precision = settings.precision if "gnomon/precision" in endpoint.annotations else AUTO
    found = [(name, *split_name(name)) for name in RUNNABLE]
    return tuple(name for name, engine, narrow in found if settings.engine in (AUTO, engine) and precision in (AUTO, narrow))


def candidates(model: str, engine: str, endpoint: FunctionSpec, profile: ModelProfile | None) -> tuple[Candidate, ...]:
    """The variants of a model on an engine in its precision, on the cores that the endpoint names, else on the profile's."""
    settings = endpoint.settings
    measured = sorted(cores for cores in profile.whole.seconds if cores <= settings.max_cores) if profile is not None else []
    cores = [settings.cores] if "gnomon/cores" in endpoint.annotations or not measured else measured
    return tuple(Candidate(model, *split_name(engine), count) for count in cores)


def member_name(endpoint: str, variant: str) -> str:
    """The name of a variant's member function. It ends with a digest where it is long, or another variant might have it."""
    name = endpoint + _MEMBER + _UNFIT.sub("-", variant.lower()).strip("-")
    if len(name) <= _MOST_NAME and _DISTINCT.fullmatch(variant):
        return name
    digest = hashlib.sha256(variant.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _MOST_NAME - _DIGEST - 1].rstrip('-')}-{digest}"


def decided_together(settings: Settings) -> bool:
    """Return whether one policy decides about all members of an endpoint with these settings; the default."""
    return settings.autoscaler == POLICY or not settings.autoscaler_named


def first_candidate(model: str, endpoint: FunctionSpec, engine: str = PROGRAM) -> Candidate:
    """A variant by which the model is checked on this engine, before its profile is known."""
    return Candidate(model, *split_name(engine), endpoint.settings.cores)


def member_settings(endpoint: FunctionSpec) -> Settings:
    """The settings of the endpoint's members, whatever their models."""
    return member_spec(endpoint, first_candidate("any@1", endpoint)).settings


def member_spec(endpoint: FunctionSpec, candidate: Candidate) -> FunctionSpec:
    """The deployment of a variant's member: the endpoint's own, with the model and cores of the variant, and no fewest number."""
    together = decided_together(endpoint.settings)
    policy = MEMBER_POLICY if together else endpoint.settings.autoscaler
    annotations = {key: text for key, text in endpoint.annotations.items() if key not in _OF_ENDPOINT} | {
        "gnomon/model": candidate.model,
        "gnomon/autoscaler": policy,
        "gnomon/cores": str(candidate.cores),
        "gnomon/engine": candidate.engine,
        "gnomon/precision": candidate.precision,
        "gnomon/max-batch": str(endpoint.settings.max_batch),
    }
    document: dict[str, Any] = dict(endpoint.raw) | {
        "service": member_name(endpoint.key.name, candidate.id),
        "namespace": endpoint.key.namespace,
        "annotations": annotations,
        "labels": {**endpoint.labels, _SCALE_MIN: "0", **(_KEPT if together else {})},
    }
    return read_deployment(document)


def batches(settings: Settings) -> tuple[int, ...]:
    """The batch sizes that are measured of a variant: powers of two, and the largest."""
    sizes = {1, settings.max_batch}
    size = 2
    while size < settings.max_batch:
        sizes.add(size)
        size *= 2
    return tuple(sorted(sizes))


def profiled(candidate: Candidate, profile: ModelProfile | None, settings: Settings) -> MeasuredVariant | None:
    """The numbers of a variant in its model's profile; None where it was not measured on these cores."""
    name = engine_name(candidate.engine, candidate.precision)
    if profile is None or profile.engine != name or not profile.whole.measured(candidate.cores):
        return None
    seconds = {size: profile.at(candidate.cores, size) for size in batches(settings)}
    return MeasuredVariant(
        {size: found for size, found in seconds.items() if found is not None},
        profile.body_load_s(settings.weight_mode),
        profile.memory_bytes(profile.layers.parameter_bytes()),
    )


def variant_of(candidate: Candidate, registered: RegisteredModel, measured: MeasuredVariant, settings: Settings) -> Variant:
    """The variant with its numbers. A model whose accuracy is unknown has 0: no query with a floor gets it."""
    # The accuracy that was stated is the model's own, in fp32.
    stated = registered.accuracy if candidate.precision == FP32 else None
    accuracy = stated if measured.accuracy is None else measured.accuracy
    largest_s = measured.latency_s[settings.max_batch]
    return Variant(
        id=candidate.id,
        architecture=candidate.architecture,
        engine=candidate.engine,
        precision=candidate.precision,
        cores=candidate.cores,
        max_batch=settings.max_batch,
        accuracy=accuracy or 0.0,
        load_s=measured.load_s,
        latency_s=measured.latency_s,
        memory_bytes=measured.memory_bytes,
        saturation_rps=settings.max_batch / largest_s if largest_s > 0 else float("inf"),
        cost_per_s=float(candidate.cores),
    )


def is_measured(measured: MeasuredVariant | None, settings: Settings) -> bool:
    """Return whether there are numbers for each batch size that this endpoint makes."""
    return measured is not None and settings.max_batch in measured.latency_s and 1 in measured.latency_s


def joined(stored: MeasuredVariant | None, other: MeasuredVariant | None) -> MeasuredVariant | None:
    """Latency and loading of `other` where there is one, with the accuracy that is stored."""
    if other is None or stored is None:
        return other or stored
    return MeasuredVariant(other.latency_s, other.load_s, other.memory_bytes, stored.accuracy)
