"""Settings of a function, read from its labels and annotations.

Standard OpenFaaS labels keep their meaning. Gnomon's own settings are annotations under `gnomon/`, because Kubernetes restricts the
characters and length of label values. `TABLE` is the single list of settings, from which parsing, error messages and
docs/annotations.md (`settings_page`) are derived. An invalid value is an error that states the allowed values. An unknown
`gnomon/` key is an error too, because a misspelt setting that is silently ignored is hard to find.

A reader parses the text of an annotation or a label, and raises ValueError or KeyError for an invalid text. The error for the user
is derived from the `Setting`, not from the reader's exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnomon_core.engines import AUTO, ENGINES, FP32, PRECISIONS
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.launch import ASYNC_CONCURRENCY, HANDLER_CONCURRENCY, MOST_CONCURRENCY
from gnomon_core.nearest_names import did_you_mean, misspelt
from gnomon_core.pairs import MAX_SHADOWS
from gnomon_core.units import parse_duration_s

MAX_NAME_LENGTH = 253


def integer(low: int, high: int) -> Callable[[str], int]:
    """A reader of a whole number from `low` to `high`, both included."""

    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return read


def number(low: float, high: float, *, scale: float = 1.0) -> Callable[[str], float]:
    """A reader of a number from `low` to `high`, both included, which is multiplied by `scale`: 1e-3 for milliseconds."""

    def read(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(text)
        return value * scale

    return read


def duration_s(low_s: float, high_s: float) -> Callable[[str], float]:
    """A reader of a duration such as 1h30m, in seconds, both bounds included."""

    def read(text: str) -> float:
        seconds = parse_duration_s(text)
        if not low_s <= seconds <= high_s:
            raise ValueError(text)
        return seconds

    return read


def name(text: str) -> str:
    """Parse a name: not empty, without blanks, not longer than a Kubernetes name."""
    if not text or any(character.isspace() for character in text) or len(text) > MAX_NAME_LENGTH:
        raise ValueError(text)
    return text


def flag(text: str) -> bool:
    """Parse true or false, in any case, or 1 and 0."""
    return {"true": True, "false": False, "1": True, "0": False}[text.lower()]


def several(*names: str) -> Callable[[str], tuple[str, ...]]:
    """A reader of a comma-separated subset of `names`, in any order; the result has the order of `names`."""

    def read(text: str) -> tuple[str, ...]:
        requested = {name.strip() for name in text.split(",")}
        if not requested <= set(names):
            raise ValueError(text)
        return tuple(name for name in names if name in requested)

    return read


def choice(*names: str) -> Callable[[str], str]:
    """A reader that accepts one of these names."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return read


PREFIX = "gnomon/"
APPLICATION = "app:"
"""The prefix of `gnomon/model` of an application's endpoint (`gnomon_core.applications`)."""
BATCHING_MAX_BATCH = 8
"""B_max of AsyFunc (section 7.1), the default of policies that split or plan batches: with batches of 1 they have no effect."""
MOST_DEADLINE_S = 86_400.0
DEFAULT_POLICY = "openfaas"
"""The scaling policy of functions that name none."""
READINGS = ("arrivals", "loading", "weights", "shadows", "gain", "objective", "kappa")
"""The points at which `asyfunc` follows AsyFunc's text or another reading of it; `policies.asyfunc.options` explains each."""
_WINDOW = duration_s(60, 21_600)
"""The range of `gnomon/plan-window`: a policy keeps a count for each second of it."""
_PLANNERS = ("batch", "batch+")
"""The policies that plan batches, and an instance's cores unless the function's settings name them."""
_SPLITTERS = ("asyfunc", "asyfunc-")
_BATCHING = (*_SPLITTERS, *_PLANNERS)
_REPLAYING = ("gnomon",)
MECHANISMS = ("reaction", "uncertainty", "queue", "lending", "shadows")
"""The mechanisms of `gnomon` that can be disabled; `policies.gnomon.policy.Options` explains each."""
_OPENFAAS = ("openfaas",)


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

    @property
    def least(self) -> int:
        """The fewest instances of a function that is not scaled to zero."""
        return max(1, self.min)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a function by its labels and annotations, with units in the names.

    `autoscaler` is a policy's name; `autoscaler_named` says that the function's annotations set it. `concurrency` is the number of
    batches that an instance executes at once; None for the default of handlers or models (`expected_concurrency`). `retry` declares
    the handler idempotent. With `target_concurrency` None the target is the number of requests that an instance executes at once.
    `deadline_s` is the deadline of requests whose client sets none. `slo_s` is the latency objective of policies, by default the
    deadline. `max_inflight` is for functions of a foreign provider, and for Revisions.
    `deterministic` limits batches to one sample: kernels sum in another order for another batch size.
    With `max_wait_s` None the scheduling policy chooses the wait. `cores` is the size of an instance; `memory_mb` is its size on
    platforms that size instances by memory (Lambda). With `plan_cores` "any" plans may choose another size.
    `without` names disabled mechanisms of `gnomon`.
    `alpha` … `ablation` are parameters of `asyfunc`, named as in its paper; `burst_cores`, `promotion` and `max_shadows` are
    extensions, `blocks` and `readings` select alternative readings of the paper.
    `stable_window_s` … `zero_grace_s` are parameters of `kpa`, set by Knative's annotations: the panic window is a share of the
    stable one. `own` are annotations `gnomon/POLICY.…` with their texts, which third parties' policies parse
    (`gnomon_core.policy_registry`).
    """

    model: str | None = None
    autoscaler: str = DEFAULT_POLICY
    autoscaler_named: bool = field(default=False, compare=False)
    scheduler: str | None = None
    slo_s: float = 30.0
    slo_percentile: float = 95.0
    max_batch: int = 1
    max_wait_s: float | None = None
    deterministic: bool = False
    cores: int = 1
    memory_mb: int | None = None
    concurrency: int | None = None
    retry: bool = False
    max_cores: int = 16
    plan_cores: str = "fixed"
    plan_window_s: float = 3600.0
    deadline_s: float = 30.0
    queue_max_requests: int = 1024
    queue_max_bytes: int = 256 * 2**20
    target_concurrency: float | None = None
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
    engine: str = AUTO
    precision: str = FP32
    accuracy_floor: float | None = None
    burst_cores: str = "shadow"
    promotion: bool = False
    max_shadows: int = 1
    blocks: str = "ratio"
    readings: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    stable_window_s: float = 60.0
    panic_share: float = 0.1
    panic_threshold: float = 2.0
    target_utilization: float = 0.7
    zero_grace_s: float = 30.0
    own: tuple[tuple[str, str], ...] = ()
    scale: ScaleSettings = field(default_factory=ScaleSettings)

    @property
    def application(self) -> str | None:
        """The application whose endpoint the function is; None for a model or a handler."""
        model = self.model or ""
        return model.removeprefix(APPLICATION) if model.startswith(APPLICATION) else None

    @property
    def expected_concurrency(self) -> int:
        """The batches that an instance executes at once, as far as known before the first instance has started."""
        if self.concurrency is not None:
            return self.concurrency
        return 1 if self.model is not None or self.max_batch > 1 else HANDLER_CONCURRENCY


@dataclass(frozen=True, slots=True)
class Setting:
    """An annotation or label: the reader of its text, and its documentation for users.

    `default` says what the field's own default does not: what holds without one, or for whom it is another. `only_with` are the
    scaling policies that it changes; all, or none of them, where it names none.
    """

    key: str
    field: str
    read: Callable[[str], Any]
    allowed: str
    meaning: str
    default: str = ""
    only_with: tuple[str, ...] = ()


SECTIONS: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    ("What it serves, and by which policies", (
        Setting("gnomon/model", "model", name, "a model name, optionally with @version, or app:NAME", "layer program in the model repository; `app:NAME` makes the function the endpoint of an application, of whose models each query gets the one that satisfies it", "none: the function is a handler"),
        Setting("gnomon/autoscaler", "autoscaler", name, "the name of a scaling policy", "how many instances, and how large", "on Knative `kpa`"),
        Setting("gnomon/scheduler", "scheduler", name, "the name of a scheduling policy", "when a batch leaves, and to which instance", "what the scaling policy asks for"),
    )),
    ("Objective and deadline", (
        Setting("gnomon/slo-ms", "slo_s", number(0.001, 3.6e6, scale=1e-3), "milliseconds from 0.001 to 3600000", "the latency objective", "or the deadline where that is said"),
        Setting("gnomon/slo-percentile", "slo_percentile", number(1, 100), "a percentile from 1 to 100", "the share of requests that must stay below it", "", _PLANNERS),
        Setting("gnomon/deadline-ms", "deadline_s", number(1, 1e3 * MOST_DEADLINE_S, scale=1e-3), "milliseconds from 1 to 86400000", "deadline of a request whose client sets none, and the longest that a client may ask for", "or the shorter of the function's variables `exec_timeout` and `write_timeout`, or `read_timeout` alone; on Knative the Revision's `timeoutSeconds`"),
    )),
    ("Batches, and what may wait", (
        Setting("gnomon/max-batch", "max_batch", integer(1, 1024), "a whole number from 1 to 1024", "the largest batch B; a client's larger batch is split, and its answers are joined", f"{BATCHING_MAX_BATCH} with the policies that split or plan batches, " + ", ".join(f"`{policy}`" for policy in _BATCHING) + ", for models with `gnomon`, and for applications"),
        Setting("gnomon/max-wait-ms", "max_wait_s", number(0, 3.6e6, scale=1e-3), "milliseconds from 0 to 3600000", "the longest wait T for a batch, with the schedulers `fixed`, `adaptive` and `adaptive-fill`", "`fixed`: 0; `adaptive`: half of what the batch takes; `adaptive-fill`: as the objective allows; `batch`: as it plans"),
        Setting("gnomon/deterministic", "deterministic", flag, "true or false", "execute each request's samples one by one, so that an answer has the same bits whichever batch it shares; costs what batching gains"),
        Setting("gnomon/queue-max-requests", "queue_max_requests", integer(1, 10**6), "a whole number from 1 to 1000000", "requests that may wait"),
        Setting("gnomon/queue-max-bytes", "queue_max_bytes", integer(1, 2**40), "bytes from 1 to 1099511627776", "bytes of bodies that may wait"),
        Setting("gnomon/max-inflight", "max_inflight", integer(1, 10_000), "a whole number from 1 to 10000", "requests, or batches, under way at once for each replica of a function that a foreign provider runs, or each pod of a Revision", "the function's variable `max_inflight`, else `--provider-inflight`; of Revisions one batch, or `containerConcurrency` requests"),
    )),
    ("Size of an instance", (
        Setting("gnomon/concurrency", "concurrency", integer(1, MOST_CONCURRENCY), f"a whole number from 1 to {MOST_CONCURRENCY}", "batches, or requests where it does not batch, that one instance executes at once, each in a thread of its own; 1: never two calls of the handler at a time. A model computes one batch at a time. On Lambda a sandbox executes one; for a foreign provider and Revisions see gnomon/max-inflight", f"{HANDLER_CONCURRENCY} for `handle` and for a program for each request, {ASYNC_CONCURRENCY} for `async def handle`, 1 with `handle_batch`"),
        Setting("gnomon/cores", "cores", integer(1, 1024), "a whole number from 1 to 1024", "cores of one instance; on one machine reserved while it is in use, unless `requests.cpu` of the deployment says how many always are"),
        Setting("gnomon/max-cores", "max_cores", integer(1, 1024), "a whole number from 1 to 1024", "the bound C_max of cores that a policy may choose", "", (*_BATCHING, *_REPLAYING)),
        Setting("gnomon/memory-mb", "memory_mb", integer(128, 10_240), "megabytes from 128 to 10240", "memory size on Lambda, instead of what the cores bring", "1769 for each core"),
        Setting("gnomon/weight-mode", "weight_mode", choice("shared", "private"), "shared or private", "whether instances on a node share one copy of the weights"),
        Setting("gnomon/engine", "engine", choice(AUTO, *ENGINES), f"{AUTO}, {', '.join(ENGINES[:-1])} or {ENGINES[-1]}", "what runs the model: its layer program, or its graph for another engine; `auto` is the quickest one that answered as the program does when the model was added. Where the engine cannot be had, the program serves and `describe` says why"),
        Setting("gnomon/precision", "precision", choice(AUTO, *PRECISIONS), f"{AUTO}, {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}", "the precision that the engine computes in; `auto` is the quickest whose accuracy on the model's validation set reaches gnomon/accuracy-floor. Where it is not offered, fp32 serves and `describe` says why"),
        Setting("gnomon/accuracy-floor", "accuracy_floor", number(0, 1), "a share from 0 to 1", "the least share of the validation set that must be answered right, with gnomon/precision `auto`", "none, and `auto` needs one"),
    )),
    ("Failures", (
        Setting("gnomon/retry", "retry", flag, "true or false", "whether the handler is idempotent, so that a request may be executed a second time, once and by itself: where its batch failed with 500, or its instance ended", "false; inference of a model always may"),
    )),
    ("Targets of single policies", (
        Setting("gnomon/target-concurrency", "target_concurrency", number(0.01, 1e6), "a number from 0.01 to 1000000", "requests in the system per instance", "what an instance executes at once: its concurrency × gnomon/max-batch", ("kpa", "openfaas")),
        Setting("gnomon/target-rps", "target_rps", number(0.01, 1e9), "a number from 0.01 to 1000000000", "requests per second per instance", "`kpa` goes by concurrency, `target-tracking` by measured latency", ("kpa", "target-tracking")),
        Setting("gnomon/target-cpu-percent", "target_cpu_percent", number(1, 100), "a percentage from 1 to 100", "CPU per instance", "", ("hpa",)),
        Setting("gnomon/scale-out-cooldown", "scale_out_cooldown_s", parse_duration_s, "a duration such as 5m", "time from one growth to the next, unless that is larger", "", ("target-tracking",)),
        Setting("gnomon/scale-in-cooldown", "scale_in_cooldown_s", parse_duration_s, "a duration such as 5m", "time from one shrinking to the next", "", ("target-tracking",)),
    )),
    ("Plans of buffers", (
        Setting("gnomon/plan-cores", "plan_cores", choice("any", "fixed"), "any or fixed", "whether plans choose an instance's cores, on Lambda its memory, of the profile's up to gnomon/max-cores, or keep gnomon/cores and gnomon/memory-mb", "`any` where neither of the two is said", _PLANNERS),
        Setting("gnomon/plan-window", "plan_window_s", _WINDOW, "a duration from 1m to 6h", "how far back plans look at what arrived, and how long one holds at most", "", _PLANNERS),
    )),
    ("Bodies and Shadows", (
        Setting("gnomon/alpha", "alpha", number(0.01, 1), "a number from 0.01 to 1", "share of the Bodies' rate above which there are more", "", (*_SPLITTERS, "mark")),
        Setting("gnomon/beta", "beta", number(0, 1), "a number from 0 to 1, below gnomon/alpha", "share of the Bodies' rate below which there are fewer", "", _SPLITTERS),
        Setting("gnomon/gamma", "gamma", number(0.1, 10), "a number from 0.1 to 10", "share of the Bodies' rate above which a burst gets Shadows", "", _SPLITTERS),
        Setting("gnomon/kappa", "kappa", number(1e-6, 1e6), "cores per GMAC from 0.000001 to 1000000", "price of memory relative to cores", "what the profile and the objective say", _SPLITTERS),
        Setting("gnomon/max-shadows", "max_shadows", integer(1, MAX_SHADOWS), f"a whole number from 1 to {MAX_SHADOWS}", "Shadows of one Body", "", _SPLITTERS),
        Setting("gnomon/burst-cores", "burst_cores", choice("shadow", "resize", "either"), "shadow, resize or either", "what free cores do for a burst: a Shadow, a larger Body, or what is better", "", _SPLITTERS),
        Setting("gnomon/promotion", "promotion", flag, "true or false", "whether a Shadow may become a Body where another Body is needed", "", _SPLITTERS),
        Setting("gnomon/blocks", "blocks", choice("ratio", "contiguous"), "ratio or contiguous", "which layer blocks a Shadow may hold: those with most MACs for their weights, or the best and its neighbours, with one hand-over", "", _SPLITTERS),
        Setting("gnomon/reading", "readings", several(*READINGS), f"some of {', '.join(READINGS)}, with commas between them", "where the paper is read as it is printed: the rate of a burst is that of arrivals (`arrivals`), a Shadow's loading counts (`loading`), memory is that of weights (`weights`), R_max has Shadows (`shadows`), dear memory counts less (`kappa`); or otherwise: η by the gain (`gain`), or by the objective (`objective`)", "none of them", _SPLITTERS),
        Setting("gnomon/without", "without", several(*MECHANISMS), f"some of {', '.join(MECHANISMS)}, with commas between them", "what `gnomon` does without: rules that react to the last second, the uncertainty of a count, what waits, cores that are borrowed for each batch, Shadows until Bodies have started", "none of them", _REPLAYING),
        Setting("gnomon/ablation", "ablation", choice("layers", "adaptive", "both"), "layers, adaptive or both", "what `asyfunc-` does without: Shadows, adaptive scheduling, or both", "", ("asyfunc-",)),
    )),
)  # fmt: skip
"""Our annotations, those of one sense together; within the first, what a user says first."""
TABLE: tuple[Setting, ...] = tuple(setting for _, settings in SECTIONS for setting in settings)

SCALE_TABLE: tuple[Setting, ...] = (
    Setting("com.openfaas.scale.min", "min", integer(0, 10_000), "a whole number from 0 to 10000", "fewest instances"),
    Setting("com.openfaas.scale.max", "max", integer(1, 10_000), "a whole number from 1 to 10000", "most instances"),
    Setting("com.openfaas.scale.zero", "zero", flag, "true or false", "whether it may scale to zero; with a minimum of 0 it may as well", "on one machine `true` for models, without com.openfaas.scale.min and the policy `fixed`"),
    Setting("com.openfaas.scale.zero-duration", "zero_duration_s", parse_duration_s, "a duration such as 15m", "idle time before zero"),
    Setting("com.openfaas.scale.down.window", "down_window_s", parse_duration_s, "a duration such as 1m", "how long the desired count must stay lower", "`hpa`: 5m"),
    Setting("com.openfaas.scale.type", "type", choice("rps", "capacity", "cpu", "queue", "custom"), "rps, capacity, cpu, queue or custom", "load to scale on; custom is refused", "OpenFaaS's Community rule: alerts", _OPENFAAS),
    Setting("com.openfaas.scale.target", "target", number(1e-6, 1e9), "a number from 0.000001 to 1000000000", "load per instance, where a type is said", "", _OPENFAAS),
    Setting("com.openfaas.scale.target-proportion", "target_proportion", number(1e-3, 1), "a number from 0.001 to 1", "share of the target that is aimed at", "", _OPENFAAS),
    Setting("com.openfaas.scale.factor", "factor", integer(0, 100), "a percentage from 0 to 100", "step of the Community rule", "", _OPENFAAS),
)  # fmt: skip


def watchdog_deadline_s(environment: Mapping[str, str]) -> float | None:
    """Time limit of OpenFaaS's watchdog for a request in seconds, from its variables; None without a limit.

    That is the shorter of `exec_timeout` and `write_timeout`. `read_timeout` is for receiving the request, and says something only
    where it stands alone. 0 is no bound, and so is an invalid duration: the watchdog silently uses its default then.
    """
    executing = [bound for bound in map(environment.get, ("exec_timeout", "write_timeout")) if bound and _bound_s(bound)]
    bounds_s = [_bound_s(text) for text in executing or [environment.get("read_timeout", "")]]
    longest_s = min(bounds_s)
    return min(longest_s, MOST_DEADLINE_S) if longest_s else None


def _bound_s(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError:
        return 0.0


def read_settings(
    labels: Mapping[str, str] | None, annotations: Mapping[str, str] | None, watchdog_s: float | None = None
) -> Settings:
    """The settings of a function. `watchdog_s` is its deadline if no annotation sets one (`watchdog_deadline_s`).

    Raises:
        GnomonError: 400 `invalid_setting` or `unknown_setting`, naming the key and what is allowed.

    """
    labels = labels or {}
    annotations = annotations or {}
    known = {setting.key for setting in TABLE}
    for key in annotations:
        # A policy's own settings, `gnomon/POLICY.…`, are parsed by its plug-in, which this module does not know.
        if key.startswith(PREFIX) and key not in known and not _of_one_policy(key):
            raise _unknown(key)
    scale = ScaleSettings(**_values(SCALE_TABLE, labels, kind="label"))
    if scale.max < scale.min:
        raise bad_request(
            "invalid_setting",
            f"label com.openfaas.scale.max is {scale.max}, below com.openfaas.scale.min, {scale.min}.",
            "Raise the maximum or lower the minimum.",
        )
    values = _values(TABLE, annotations, kind="annotation")
    # An endpoint of an application that names no policy is scaled differently from one that names the default.
    values["autoscaler_named"] = "autoscaler" in values
    if watchdog_s is not None:
        values.setdefault("deadline_s", watchdog_s)
    _derive(values)
    own = tuple(sorted((key, str(text)) for key, text in annotations.items() if _of_one_policy(key)))
    settings = Settings(**values, own=own, scale=scale)
    # Validated here, where both are known: a policy would otherwise create and end instances in turn (flapping).
    if settings.beta >= settings.alpha:
        raise bad_request(
            "invalid_setting",
            f"annotation gnomon/beta is {settings.beta:g}, not below gnomon/alpha, {settings.alpha:g}.",
            "Between the two nothing changes: without room there, instances would come and go.",
        )
    _one_at_a_time(settings)
    _floor_with_auto(settings)
    if settings.cores > settings.max_cores:
        raise bad_request(
            "invalid_setting",
            f"annotation gnomon/cores is {settings.cores}, above gnomon/max-cores, {settings.max_cores}.",
            "Raise the maximum or ask for fewer cores.",
        )
    return settings


def _derive(values: dict[str, Any]) -> None:
    """Fill in the values that are derived from others and not set."""
    if "deadline_s" in values:
        # An answer after the deadline is refused, so that a longer default objective would have no meaning.
        values.setdefault("slo_s", values["deadline_s"])
    if values.get("deterministic") and values.setdefault("max_batch", 1) > 1:
        raise bad_request(
            "invalid_setting",
            f"annotation gnomon/deterministic is true and gnomon/max-batch is {values['max_batch']}.",
            "Kernels add in another order for another batch size, so it needs batches of one: remove one of the two.",
        )
    if values.get("autoscaler") in _BATCHING or values.get("model", "").startswith(APPLICATION):
        values.setdefault("max_batch", BATCHING_MAX_BATCH)
    if values.get("autoscaler") in _REPLAYING and "model" in values:
        values.setdefault("max_batch", BATCHING_MAX_BATCH)
    if values.get("autoscaler") in _PLANNERS and not {"cores", "memory_mb"} & set(values):
        values.setdefault("plan_cores", "any")


def refuse_misspelt(labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
    """Refuse unknown labels and annotations that are similar to known ones: `gnomo/max-batch`, `com.openfaas.scale.mim`.

    Keys of other tools are accepted. Stored functions are not checked again, so that an upgrade refuses no deployed function.

    Raises:
        GnomonError: 400 `unknown_setting`, naming the key that was probably meant.

    """
    own = [setting.key for setting in TABLE]
    for kind, keys, names in (("annotation", annotations, own), ("label", labels, [setting.key for setting in SCALE_TABLE])):
        for key in keys:
            if meant := misspelt(key, names):
                raise bad_request(
                    "unknown_setting", f"{kind} {key[:100]!r} is not known.", f"Did you mean {meant}? Correct it, or remove it."
                )


def _one_at_a_time(settings: Settings) -> None:
    if settings.model is not None and (settings.concurrency or 1) > 1:
        raise bad_request(
            "invalid_setting",
            f"annotation gnomon/concurrency is {settings.concurrency}, and a model computes one batch at a time.",
            "Leave it out; more cores (gnomon/cores) or larger batches (gnomon/max-batch) make an instance answer more.",
        )


def _floor_with_auto(settings: Settings) -> None:
    if (settings.precision == AUTO) != (settings.accuracy_floor is not None):
        missing, present = "gnomon/accuracy-floor", "gnomon/precision is auto"
        if settings.precision != AUTO:
            missing, present = "gnomon/precision: auto", "gnomon/accuracy-floor is set"
        raise bad_request(
            "invalid_setting",
            f"annotation {present}, and there is no {missing}.",
            "The quickest precision whose accuracy reaches the floor serves: set both, or name a precision.",
        )


def read_value(setting: Setting, key: str, text: str, *, kind: str) -> Any:
    """Parse the text of an annotation or a label.

    Raises:
        GnomonError: 400 `invalid_setting`, with what is allowed.

    """
    try:
        return setting.read(text.strip())
    except (ValueError, KeyError, OverflowError):
        raise bad_request("invalid_setting", f"{kind} {key} is {text[:100]!r}.", f"It must be {setting.allowed}.") from None


def _values(table: tuple[Setting, ...], texts: Mapping[str, str], *, kind: str) -> dict[str, Any]:
    present = (setting for setting in table if setting.key in texts)
    return {setting.field: read_value(setting, setting.key, str(texts[setting.key]), kind=kind) for setting in present}


def _of_one_policy(key: str) -> bool:
    """Return whether the key is `gnomon/POLICY.…`, a setting that the policy itself parses."""
    return key.startswith(PREFIX) and "." in key


def _unknown(key: str) -> GnomonError:
    names = [setting.key for setting in TABLE]
    hint = f"{did_you_mean(key, names)} Known ones: {', '.join(names)}.".strip()
    return bad_request("unknown_setting", f"annotation {key[:100]!r} is not known.", hint)
