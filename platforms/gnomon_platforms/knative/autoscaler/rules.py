"""Scaling rules of one Revision: its annotations, with the cluster's settings as defaults, parsed to values.

`ClusterSettings` are the defaults of all Revisions, from Knative's ConfigMaps `config-autoscaler`, `config-deployment` and
`config-features`. An invalid value is replaced by its default: Knative's webhook has accepted it, or was bypassed.

Knative's annotations keep their meaning for every policy:

    min-scale, max-scale, initial-scale, activation-scale          bounds of the number of pods
    target, metric, target-utilization-percentage, window, panic…  how much one pod is to take (kpa), and over which time
    scale-down-delay                                               how long a lower number must be wished for
    scale-to-zero-pod-retention-period, target-burst-capacity      when the last pod goes, and when activators leave the way

Example: containerConcurrency 4, target 10, target-utilization-percentage 50: a pod takes min(4, 10) = 4 requests, and kpa aims
at 2 of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from gnomon_core.applications import refuse_endpoint
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.settings import PREFIX, Settings, read_settings
from gnomon_core.units import parse_duration_s
from gnomon_platforms.knative.autoscaler.objects import NO_TEMPLATE, PaFacts, Template
from gnomon_platforms.knative.resources import AUTOSCALING, METRIC_ANNOTATION, PROGRESS_DEADLINE_ANNOTATION

T = TypeVar("T")

DEFAULT_POLICY = "kpa"
MOST_PODS = 10_000
"""The most pods of a Revision, as `com.openfaas.scale.max` of a function: a larger number, which Knative accepts, counts as this.
The process of the class, which all users share, has an entry for each pod that a Revision wants."""
ACTIVATION_BUFFER_S = 30.0
"""Seconds added to the progress deadline, as Knative does: the Deployment first reports that it has passed, and why."""
LEAST_TARGET = 0.01
MAX_BATCH = 1024
UNSUITED = {"hpa": "decides by CPU, which is not measured here"}
"""Policies that cannot decide here, or whose decisions cannot be carried out, with the reasons."""


_LOG = logging.getLogger("gnomon.knative")

CSI_FEATURE = "kubernetes.podspec-volumes-csi"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The defaults of every Revision. `max_scale` 0 is no bound; a target's percentage may also be written as a share.

    `csi_volumes` is whether Revisions' pods may have CSI volumes.
    """

    concurrency_target: float = 100.0
    target_utilization: float = 0.7
    rps_target: float = 200.0
    target_burst_capacity: float = 211.0
    activator_capacity: float = 100.0
    stable_window_s: float = 60.0
    panic_window_percent: float = 10.0
    panic_threshold_percent: float = 200.0
    enable_scale_to_zero: bool = True
    zero_grace_s: float = 30.0
    pod_retention_s: float = 0.0
    scale_down_delay_s: float = 0.0
    initial_scale: int = 1
    allow_zero_initial_scale: bool = False
    min_scale: int = 0
    max_scale: int = 0
    progress_deadline_s: float = 600.0
    csi_volumes: bool = False


def number(text: str) -> float:
    """A finite number: by `inf` and `nan`, which Knative accepts, nothing can be planned.

    Raises ValueError for any other text.
    """
    value = float(text)
    if not math.isfinite(value):
        msg = f"{text[:20]!r} is not finite"
        raise ValueError(msg)
    return value


def pods(text: str) -> int:
    """A number of pods, at most `MOST_PODS`.

    Raises ValueError for any other text.
    """
    value = int(text)
    if value < 0:
        msg = f"{text[:20]!r} is no number of pods"
        raise ValueError(msg)
    return min(value, MOST_PODS)


def share(text: str) -> float:
    """A percentage, or a share where it is at most 1."""
    value = number(text)
    return value / 100.0 if value > 1.0 else value


def flag(text: str) -> bool:
    """True or false."""
    return {"true": True, "false": False}[text.strip().lower()]


def enabled(text: str) -> bool:
    """True if a feature is switched on; `allowed` is too little for Knative's webhook."""
    return {"enabled": True, "allowed": False, "disabled": False}[text.strip().lower()]


KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "container-concurrency-target-default": ("concurrency_target", number),
    "container-concurrency-target-percentage": ("target_utilization", share),
    "requests-per-second-target-default": ("rps_target", number),
    "target-burst-capacity": ("target_burst_capacity", number),
    "activator-capacity": ("activator_capacity", number),
    "stable-window": ("stable_window_s", parse_duration_s),
    "panic-window-percentage": ("panic_window_percent", number),
    "panic-threshold-percentage": ("panic_threshold_percent", number),
    "enable-scale-to-zero": ("enable_scale_to_zero", flag),
    "scale-to-zero-grace-period": ("zero_grace_s", parse_duration_s),
    "scale-to-zero-pod-retention-period": ("pod_retention_s", parse_duration_s),
    "scale-down-delay": ("scale_down_delay_s", parse_duration_s),
    "initial-scale": ("initial_scale", pods),
    "allow-zero-initial-scale": ("allow_zero_initial_scale", flag),
    "min-scale": ("min_scale", pods),
    "max-scale": ("max_scale", pods),
    "progress-deadline": ("progress_deadline_s", parse_duration_s),
    CSI_FEATURE: ("csi_volumes", enabled),
}
assert {name for name, _ in KEYS.values()} == {field.name for field in fields(ClusterSettings)}


def cluster_settings(*maps: Mapping[str, str]) -> ClusterSettings:
    """The settings that ConfigMaps' data say."""
    values: dict[str, Any] = {}
    for data in maps:
        for key, text in data.items():
            if key not in KEYS:
                continue
            name, read = KEYS[key]
            try:
                values[name] = read(text)
            except (ValueError, KeyError):
                _LOG.warning("%s has the invalid value %r: the default is used", key, text[:100])
    return ClusterSettings(**values)


def config_data(document: dict[str, Any]) -> Mapping[str, str]:
    """The known keys of a ConfigMap's data."""
    return {key: text for key, text in (document.get("data") or {}).items() if key in KEYS}


@dataclass(frozen=True, slots=True)
class Rules:
    """The scaling rules of one Revision.

    `settings` are the policy's. `max_scale` 0 is no bound. `total` is a pod's capacity, in requests in the system or, `by_rps`,
    requests a second; `burst_capacity` is the spare capacity at which activators leave the path, -1 for never.
    `cores` are each pod's desired cores, None for those that it started with. `trouble` says which settings could not be used
    as written.
    """

    settings: Settings
    min_scale: int
    max_scale: int
    initial_scale: int
    activation_scale: int
    to_zero: bool
    total: float
    by_rps: bool
    burst_capacity: float
    activator_capacity: float
    panic_s: float
    grace_s: float
    retention_s: float
    activation_limit_s: float
    cores: int | None = None
    trouble: str = ""

    @property
    def window_s(self) -> float:
        """The stable window."""
        return self.settings.stable_window_s


class Annotations:
    """Reads Knative's annotations in kebab or camel case; an invalid value counts as absent, as it does for Knative."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations

    def get(self, name: str, read: Callable[[str], T], default: T) -> T:
        first, *others = name.split("-")
        for spelling in (name, first + "".join(other.capitalize() for other in others)):
            text = self._annotations.get(AUTOSCALING + spelling)
            if text is not None:
                try:
                    return read(text)
                except ValueError:
                    return default
        return default


def rules(
    pa: PaFacts,
    cluster: ClusterSettings,
    live: Mapping[str, str] | None = None,
    check: Callable[[Settings], Any] | None = None,
    template: Template = NO_TEMPLATE,
) -> Rules:
    """Read the rules of a Revision.

    `live` are Gnomon's annotations of the Revision, which can be changed while it serves; None uses the PodAutoscaler's copy.
    `template` supplies cores and deadline if no annotation sets them. `check` raises a GnomonError for settings that no policy
    here can scale by; the Revision is then scaled by `kpa`.
    """
    annotations = Annotations(pa.annotations)
    own = pa.annotations if live is None else live
    settings, trouble = _settings(pa, own, check, template)
    # If the settings were invalid, `kpa` with defaults is in force, and the default of cores must not resize the pods.
    cores = settings.cores if f"{PREFIX}cores" in own and not trouble else None
    # Knative writes an empty metric annotation on Revisions of other classes that name none.
    metric = pa.annotations.get(METRIC_ANNOTATION) or "concurrency"
    if metric not in ("concurrency", "rps"):
        trouble = f"Metric {metric[:50]} is not measured by this class: concurrency is used. {trouble}".strip()
    capacity = _pod_capacity(pa, cluster, annotations, settings)
    settings = _with_knative_annotations(settings, capacity, pa, cluster)
    retention_s = annotations.get("scale-to-zero-pod-retention-period", parse_duration_s, cluster.pod_retention_s)
    initial = annotations.get("initial-scale", pods, cluster.initial_scale)
    return Rules(
        settings=settings,
        min_scale=settings.scale.min,
        max_scale=annotations.get("max-scale", pods, cluster.max_scale),
        initial_scale=initial if initial or cluster.allow_zero_initial_scale else max(1, cluster.initial_scale),
        activation_scale=annotations.get("activation-scale", pods, 1),
        to_zero=cluster.enable_scale_to_zero,
        total=capacity.total,
        by_rps=capacity.by_rps,
        burst_capacity=annotations.get("target-burst-capacity", number, cluster.target_burst_capacity),
        activator_capacity=max(1.0, cluster.activator_capacity),
        panic_s=max(1.0, float(round(settings.stable_window_s * settings.panic_share))),
        grace_s=cluster.zero_grace_s,
        retention_s=retention_s if pa.reachable else 0.0,
        activation_limit_s=_deadline_s(pa, cluster) + ACTIVATION_BUFFER_S,
        cores=cores,
        trouble=trouble,
    )


@dataclass(frozen=True, slots=True)
class _PodCapacity:
    """A pod's capacity, and the target utilisation as a share of it."""

    total: float
    share: float
    by_rps: bool


def _pod_capacity(pa: PaFacts, cluster: ClusterSettings, annotations: Annotations, settings: Settings) -> _PodCapacity:
    """A pod's capacity by Knative's annotations, else by Gnomon's, else by the cluster's defaults."""
    by_rps = pa.annotations.get(METRIC_ANNOTATION) == "rps"
    share = annotations.get("target-utilization-percentage", number, 100.0 * cluster.target_utilization) / 100.0
    named = annotations.get("target", number, 0.0)
    if not named and settings.target_rps is not None:
        named, by_rps = settings.target_rps, True
    elif not named and not by_rps and settings.target_concurrency is not None:
        named = settings.target_concurrency
    total = named or (cluster.rps_target if by_rps else float(pa.concurrency) or cluster.concurrency_target)
    if pa.concurrency and not by_rps:
        total = min(total, float(pa.concurrency))
    total = max(total, LEAST_TARGET)
    return _PodCapacity(total, max(share, LEAST_TARGET / total), by_rps)


def _with_knative_annotations(settings: Settings, capacity: _PodCapacity, pa: PaFacts, cluster: ClusterSettings) -> Settings:
    """The policy's settings with what Knative's annotations say."""
    annotations = Annotations(pa.annotations)
    least = annotations.get("min-scale", pods, cluster.min_scale) if pa.reachable else 0
    if not cluster.enable_scale_to_zero:
        least = max(1, least)
    max_scale = annotations.get("max-scale", pods, cluster.max_scale)
    window_s = annotations.get("window", parse_duration_s, cluster.stable_window_s)
    delay_s = annotations.get("scale-down-delay", parse_duration_s, cluster.scale_down_delay_s) if pa.reachable else 0.0
    scale = replace(
        settings.scale,
        min=least,
        max=max(max_scale, least) if max_scale else MOST_PODS,
        zero=least == 0,
        zero_duration_s=window_s + delay_s,
        down_window_s=delay_s,
    )
    return replace(
        settings,
        scale=scale,
        target_rps=capacity.total if capacity.by_rps else None,
        target_concurrency=settings.target_concurrency if capacity.by_rps else capacity.total,
        target_utilization=capacity.share,
        stable_window_s=window_s,
        panic_share=annotations.get("panic-window-percentage", number, cluster.panic_window_percent) / 100.0,
        panic_threshold=annotations.get("panic-threshold-percentage", number, cluster.panic_threshold_percent) / 100.0,
        # Knative's own grace period applies (`planning`), which begins when activators are in the path.
        zero_grace_s=0.0,
    )


def _settings(
    pa: PaFacts, annotations: Mapping[str, str], check: Callable[[Settings], Any] | None, template: Template
) -> tuple[Settings, str]:
    """The policy's settings by Gnomon's annotations; the defaults of `kpa`, with the reason, if these are invalid."""
    own_annotations = {key: text for key, text in annotations.items() if key.startswith(PREFIX)}
    own_annotations.setdefault(f"{PREFIX}autoscaler", DEFAULT_POLICY)
    trouble = ""
    try:
        settings = template.under(read_settings(None, own_annotations), own_annotations)
        refuse_endpoint(settings)
        if settings.autoscaler in UNSUITED:
            raise bad_request("unsupported_policy", f"{settings.autoscaler} {UNSUITED[settings.autoscaler]}.")
        if check is not None:
            check(settings)
    except GnomonError as error:
        trouble = f"{DEFAULT_POLICY} is used: {error}"
        settings = template.under(read_settings(None, {f"{PREFIX}autoscaler": DEFAULT_POLICY}), {})
    if f"{PREFIX}max-batch" not in own_annotations and pa.concurrency and settings.max_batch == 1:
        # Policies without a known latency assume that an instance holds one full batch.
        settings = replace(settings, max_batch=min(pa.concurrency, MAX_BATCH))
    return settings, trouble


def _deadline_s(pa: PaFacts, cluster: ClusterSettings) -> float:
    try:
        return parse_duration_s(pa.annotations[PROGRESS_DEADLINE_ANNOTATION])
    except (KeyError, ValueError):
        return cluster.progress_deadline_s
