"""Knative's cluster-wide settings for Revisions, from `config-autoscaler`, `config-deployment` and `config-features`.

An invalid value is replaced by its default: Knative's webhook has accepted it, or was bypassed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from gnomon_core.units import parse_duration_s

CSI_FEATURE = "kubernetes.podspec-volumes-csi"

_LOG = logging.getLogger("gnomon.knative")


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


def share(text: str) -> float:
    """A percentage, or a share where it is at most 1."""
    value = float(text)
    return value / 100.0 if value > 1.0 else value


def flag(text: str) -> bool:
    """True or false."""
    return {"true": True, "false": False}[text.strip().lower()]


def enabled(text: str) -> bool:
    """Whether a feature is switched on; `allowed` is too little for Knative's webhook."""
    return {"enabled": True, "allowed": False, "disabled": False}[text.strip().lower()]


KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "container-concurrency-target-default": ("concurrency_target", float),
    "container-concurrency-target-percentage": ("target_utilization", share),
    "requests-per-second-target-default": ("rps_target", float),
    "target-burst-capacity": ("target_burst_capacity", float),
    "activator-capacity": ("activator_capacity", float),
    "stable-window": ("stable_window_s", parse_duration_s),
    "panic-window-percentage": ("panic_window_percent", float),
    "panic-threshold-percentage": ("panic_threshold_percent", float),
    "enable-scale-to-zero": ("enable_scale_to_zero", flag),
    "scale-to-zero-grace-period": ("zero_grace_s", parse_duration_s),
    "scale-to-zero-pod-retention-period": ("pod_retention_s", parse_duration_s),
    "scale-down-delay": ("scale_down_delay_s", parse_duration_s),
    "initial-scale": ("initial_scale", int),
    "allow-zero-initial-scale": ("allow_zero_initial_scale", flag),
    "min-scale": ("min_scale", int),
    "max-scale": ("max_scale", int),
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
                _LOG.warning("%s is %r, which cannot be read: its default is used", key, text[:100])
    return ClusterSettings(**values)


def config_data(document: dict[str, Any]) -> Mapping[str, str]:
    """The known keys of a ConfigMap's data."""
    return {key: text for key, text in (document.get("data") or {}).items() if key in KEYS}
