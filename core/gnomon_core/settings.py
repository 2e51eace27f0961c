"""What a function's labels and annotations say about how it is served.

Standard OpenFaaS labels keep their meaning; our own settings are annotations under `gnomon/`, because a Kubernetes label value
may not hold what they need. `TABLE` is the one list of them: reading, error messages and documentation come from it.
A value that cannot be read is an error that says what is allowed, and so is an unknown `gnomon/` key: a misspelt setting that is
silently ignored costs its author an evening.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.pairs import MAX_SHADOWS
from gnomon_core.units import parse_duration_s

PREFIX = "gnomon/"
MAX_NAME_LENGTH = 253
BATCHING = ("asyfunc", "batch")
PLANNING = "batch"
"""What the names of policies begin with that plan an instance's cores too, unless the function says them."""
BATCHING_MAX_BATCH = 8
"""B_max of AsyFunc (section 7.1), for the policies that split or plan batches: a largest one of 1 leaves them nothing to do."""
SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 60.0, 21_600.0
"""Of `gnomon/plan-window`: a policy keeps a count for each second of it."""
READINGS = ("arrivals", "loading", "weights", "shadows", "gain", "objective")
"""Places where `asyfunc` can be had as AsyFunc prints it, or in another reading; what each changes: `policies.asyfunc.options`."""


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """OpenFaaS's `com.openfaas.scale.*` labels with their defaults.

    `type` is the load that the `openfaas` policy's Pro formula scales on; None means that the Community rule applies.
    """

    min: int = 1
    max: int = 20
    zero: bool = False
    zero_duration_s: float = 900.0
    type: str | None = None
    target: float = 50.0
    target_proportion: float = 0.9
    factor: int = 10
    down_window_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that labels and annotations decide, with units in the names.

    `deadline_s` bounds a request's stay when the client sets none; `slo_s` is the objective that batches are timed by and, where
    it is not set, equals the deadline. `max_inflight` is for functions that a foreign provider runs. `max_wait_s` None leaves the wait to the scheduling policy. `cores` is the size of an instance,
    `memory_mb` that of one whose cores follow from its memory, on Lambda. `plan_cores` "any" lets plans choose another size.
    `alpha` … `ablation` are those of `asyfunc`, by the names of its paper; `burst_cores`, `promotion` and `max_shadows`
    go beyond it, `blocks` and `readings` are other readings of it. `stable_window_s` … `zero_grace_s` are those of `kpa`, which Knative's annotations set: the panic window is a share
    of the stable one.
    """

    model: str | None = None
    autoscaler: str = "openfaas"
    scheduler: str | None = None
    slo_s: float = 30.0
    slo_percentile: float = 95.0
    max_batch: int = 1
    max_wait_s: float | None = None
    cores: int = 1
    memory_mb: int | None = None
    max_cores: int = 16
    plan_cores: str = "fixed"
    plan_window_s: float = 3600.0
    deadline_s: float = 30.0
    queue_max_requests: int = 1024
    queue_max_bytes: int = 256 * 2**20
    target_concurrency: float = 1.0
    target_rps: float | None = None
    target_cpu_percent: float = 80.0
    max_inflight: int | None = None
    scale_out_cooldown_s: float = 300.0
    scale_in_cooldown_s: float = 300.0
    alpha: float = 0.8
    beta: float = 0.6
    gamma: float = 1.0
    kappa: float | None = None
    ablation: str = "layers"
    weight_mode: str = "shared"
    burst_cores: str = "shadow"
    promotion: bool = False
    max_shadows: int = 1
    blocks: str = "ratio"
    readings: tuple[str, ...] = ()
    stable_window_s: float = 60.0
    panic_share: float = 0.1
    panic_threshold: float = 2.0
    target_utilization: float = 0.7
    zero_grace_s: float = 30.0
    scale: ScaleSettings = field(default_factory=ScaleSettings)


@dataclass(frozen=True, slots=True)
class Setting:
    """One annotation or label: how its text becomes a value, and what a user must know about it."""

    key: str
    field: str
    read: Callable[[str], Any]
    allowed: str
    meaning: str


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return read


def _number(low: float, high: float, *, scale: float = 1.0) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(text)
        return value * scale

    return read


def _window(text: str) -> float:
    seconds = parse_duration_s(text)
    if not SHORTEST_WINDOW_S <= seconds <= LONGEST_WINDOW_S:
        raise ValueError(text)
    return seconds


def _name(text: str) -> str:
    if not text or any(character.isspace() for character in text) or len(text) > MAX_NAME_LENGTH:
        raise ValueError(text)
    return text


def _flag(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.lower()]


def _several(*names: str) -> Callable[[str], tuple[str, ...]]:
    """Some of these, with commas between them, in any order."""

    def read(text: str) -> tuple[str, ...]:
        asked = {name.strip() for name in text.split(",")}
        if not asked <= set(names):
            raise ValueError(text)
        return tuple(name for name in names if name in asked)

    return read


def _choice(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return read


TABLE: tuple[Setting, ...] = (
    Setting("gnomon/model", "model", _name, "a model name, optionally with @version", "layer program in the model repository"),
    Setting("gnomon/autoscaler", "autoscaler", _name, "the name of a scaling policy", "how many instances, and how large"),
    Setting("gnomon/scheduler", "scheduler", _name, "the name of a scheduling policy", "when a batch leaves, and to which instance"),
    Setting("gnomon/slo-ms", "slo_s", _number(0.001, 3.6e6, scale=1e-3), "milliseconds > 0", "the latency objective"),
    Setting("gnomon/slo-percentile", "slo_percentile", _number(1, 100), "a percentile from 1 to 100", "of which requests"),
    Setting("gnomon/max-batch", "max_batch", _integer(1, 1024), "a whole number from 1 to 1024", "the largest batch B"),
    Setting("gnomon/max-wait-ms", "max_wait_s", _number(0, 3.6e6, scale=1e-3), "milliseconds >= 0", "the longest wait T for a batch"),
    Setting("gnomon/cores", "cores", _integer(1, 1024), "a whole number from 1 to 1024", "cores of one instance"),
    Setting("gnomon/memory-mb", "memory_mb", _integer(128, 10_240), "megabytes from 128 to 10240", "memory size on Lambda, instead of what the cores bring"),
    Setting("gnomon/max-cores", "max_cores", _integer(1, 1024), "a whole number from 1 to 1024", "the bound C_max"),
    Setting("gnomon/plan-cores", "plan_cores", _choice("any", "fixed"), "any or fixed", "whether plans choose an instance's cores, on Lambda its memory, of the profile's up to gnomon/max-cores, or keep gnomon/cores and gnomon/memory-mb (batch, batch+)"),
    Setting("gnomon/plan-window", "plan_window_s", _window, "a duration from 1m to 6h", "how far back plans look at what arrived, and how long one holds at most; default 1h (batch, batch+)"),
    Setting("gnomon/deadline-ms", "deadline_s", _number(1, 8.64e7, scale=1e-3), "milliseconds from 1 to 86400000", "default deadline of a request"),
    Setting("gnomon/queue-max-requests", "queue_max_requests", _integer(1, 10**6), "a whole number from 1 to 1000000", "requests that may wait"),
    Setting("gnomon/queue-max-bytes", "queue_max_bytes", _integer(1, 2**40), "bytes > 0", "bytes of bodies that may wait"),
    Setting("gnomon/max-inflight", "max_inflight", _integer(1, 10_000), "a whole number from 1 to 10000", "requests under way at once for each replica of a function that a foreign provider runs; default: its variable max_inflight"),
    Setting("gnomon/target-concurrency", "target_concurrency", _number(0.01, 1e6), "a number > 0", "requests in the system per instance (kpa)"),
    Setting("gnomon/target-rps", "target_rps", _number(0.01, 1e9), "a number > 0", "requests per second per instance (kpa, where it replaces concurrency; target-tracking)"),
    Setting("gnomon/target-cpu-percent", "target_cpu_percent", _number(1, 100), "a percentage from 1 to 100", "CPU per instance (hpa)"),
    Setting("gnomon/scale-out-cooldown", "scale_out_cooldown_s", parse_duration_s, "a duration such as 5m", "time from one growth to the next, unless that is larger (target-tracking)"),
    Setting("gnomon/scale-in-cooldown", "scale_in_cooldown_s", parse_duration_s, "a duration such as 5m", "time from one shrinking to the next (target-tracking)"),
    Setting("gnomon/alpha", "alpha", _number(0.01, 1), "a number > 0 and <= 1", "share of the Bodies' rate above which there are more (asyfunc, mark)"),
    Setting("gnomon/beta", "beta", _number(0, 1), "a number from 0 to 1, below gnomon/alpha", "share below which there are fewer (asyfunc)"),
    Setting("gnomon/gamma", "gamma", _number(0.1, 10), "a number from 0.1 to 10", "share of the rate above which a burst gets Shadows (asyfunc)"),
    Setting("gnomon/kappa", "kappa", _number(1e-6, 1e6), "cores per GMAC > 0", "what memory is worth beside cores (asyfunc); default: what the profile and the objective say"),
    Setting("gnomon/ablation", "ablation", _choice("layers", "adaptive", "both"), "layers, adaptive or both", "what asyfunc- does without"),
    Setting("gnomon/weight-mode", "weight_mode", _choice("shared", "private"), "shared or private", "whether instances on a node share one copy of the weights"),
    Setting("gnomon/burst-cores", "burst_cores", _choice("shadow", "resize", "either"), "shadow, resize or either", "what free cores do for a burst: a Shadow, a larger Body, or what is better (asyfunc)"),
    Setting("gnomon/max-shadows", "max_shadows", _integer(1, MAX_SHADOWS), f"a whole number from 1 to {MAX_SHADOWS}", "Shadows of one Body (asyfunc)"),
    Setting("gnomon/promotion", "promotion", _flag, "true or false", "whether a Shadow may become a Body where another Body is needed (asyfunc)"),
    Setting("gnomon/blocks", "blocks", _choice("ratio", "contiguous"), "ratio or contiguous", "which blocks a Shadow may hold: those with most MACs for their weights, or the best and its neighbours, with one hand-over (asyfunc)"),
    Setting("gnomon/reading", "readings", _several(*READINGS), f"some of {', '.join(READINGS)}, with commas between them", "where the paper is read as it is printed: the rate of a burst is that of arrivals, a Shadow's loading counts, memory is that of weights, R_max has Shadows; or otherwise: η by the gain, or by the objective (asyfunc)"),
)  # fmt: skip

SCALE_TABLE: tuple[Setting, ...] = (
    Setting("com.openfaas.scale.min", "min", _integer(0, 10_000), "a whole number from 0", "fewest instances"),
    Setting("com.openfaas.scale.max", "max", _integer(1, 10_000), "a whole number from 1", "most instances"),
    Setting("com.openfaas.scale.zero", "zero", _flag, "true or false", "whether it may scale to zero"),
    Setting("com.openfaas.scale.zero-duration", "zero_duration_s", parse_duration_s, "a duration such as 15m", "idle time before zero"),
    Setting("com.openfaas.scale.type", "type", _choice("rps", "capacity", "cpu", "queue", "custom"), "rps, capacity, cpu, queue or custom", "load to scale on"),
    Setting("com.openfaas.scale.target", "target", _number(1e-6, 1e9), "a number > 0", "load per instance"),
    Setting("com.openfaas.scale.target-proportion", "target_proportion", _number(1e-3, 1), "a number > 0 and <= 1", "share of the target that is aimed at"),
    Setting("com.openfaas.scale.factor", "factor", _integer(0, 100), "a percentage from 0 to 100", "step of the Community rule"),
    Setting("com.openfaas.scale.down.window", "down_window_s", parse_duration_s, "a duration up to 5m", "how long a lower wish must last"),
)  # fmt: skip


def read_settings(labels: Mapping[str, str] | None, annotations: Mapping[str, str] | None) -> Settings:
    """The settings of a function.

    Raises:
        GnomonError: 400 `invalid_setting` or `unknown_setting`, naming the key and what is allowed.

    """
    labels = labels or {}
    annotations = annotations or {}
    known = {setting.key for setting in TABLE}
    for key in annotations:
        if key.startswith(PREFIX) and key not in known:
            raise _unknown(key)
    scale = ScaleSettings(**_values(SCALE_TABLE, labels, kind="label"))
    if scale.max < scale.min:
        raise bad_request(
            "invalid_setting",
            f"label com.openfaas.scale.max is {scale.max}, below com.openfaas.scale.min, {scale.min}.",
            "Raise the maximum or lower the minimum.",
        )
    values = _values(TABLE, annotations, kind="annotation")
    if "deadline_s" in values:
        values.setdefault("slo_s", values["deadline_s"])
    if str(values.get("autoscaler", "")).startswith(BATCHING):
        values.setdefault("max_batch", BATCHING_MAX_BATCH)
    if str(values.get("autoscaler", "")).startswith(PLANNING) and not {"cores", "memory_mb"} & set(values):
        values.setdefault("plan_cores", "any")
    settings = Settings(**values, scale=scale)
    if settings.beta >= settings.alpha:
        raise bad_request(
            "invalid_setting",
            f"annotation gnomon/beta is {settings.beta:g}, not below gnomon/alpha, {settings.alpha:g}.",
            "Between the two nothing changes: without room there, instances would come and go.",
        )
    if settings.cores > settings.max_cores:
        raise bad_request(
            "invalid_setting",
            f"annotation gnomon/cores is {settings.cores}, above gnomon/max-cores, {settings.max_cores}.",
            "Raise the maximum or ask for fewer cores.",
        )
    return settings


def _values(table: tuple[Setting, ...], texts: Mapping[str, str], *, kind: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for setting in table:
        if setting.key not in texts:
            continue
        text = str(texts[setting.key])
        try:
            values[setting.field] = setting.read(text.strip())
        except (ValueError, KeyError, OverflowError):
            raise bad_request(
                "invalid_setting",
                f"{kind} {setting.key} is {text[:100]!r}.",
                f"It must be {setting.allowed}.",
            ) from None
    return values


def _unknown(key: str) -> GnomonError:
    names = ", ".join(setting.key for setting in TABLE)
    return bad_request("unknown_setting", f"annotation {key!r} is not known.", f"Known ones: {names}.")
