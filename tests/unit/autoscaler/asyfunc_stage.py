"""The common fixture of tests of `asyfunc`: a model of two halves, its Bodies, and one observation of them in a burst."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gnomon_autoscaler.policies.asyfunc.lls import LayerLevel, Tick
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.replica_policy import FreeCapacity
from gnomon_autoscaler.testing import Timeline
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import History, Observation
from gnomon_core.settings import Settings
from tests.made_up_models import BlockPlan, made_up_profile

MB = 10**6
# Two halves of the work; the first has a fifth of the weights. 0.1 s a sample: 10 rps a core, whatever the batch.
MODEL = (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB))
LATENCY_S = tuple(0.1 * size for size in range(1, 9))
PROFILE = made_up_profile(MODEL, LATENCY_S, gmacs=4.0, overhead_bytes=100 * MB)


def partly_serial(serial: float, cores: int = 2) -> ModelProfile:
    """The model on up to so many cores, where this part of its work is serial."""
    return made_up_profile(
        MODEL, LATENCY_S, cores=range(1, cores + 1), serial_fraction=serial, gmacs=4.0, overhead_bytes=100 * MB
    )


def body(name: str, cores: int = 1, **fields: Any) -> Instance:
    return replace(Instance(name, "f.ns", 1, "n1", cores, 100, InstanceState.READY, 0.0), **fields)


def node(name: str = "n1", cores: float = 8, memory: int = 10**12, reserve: float = 0) -> Node:
    """A node with so much free, and so many cores held for Shadows."""
    return Node(name, 8, 10**12, cores, memory, reserve)


def observed(
    rates_rps: Sequence[float],
    *instances: Instance,
    slo_s: float = 1.0,
    max_batch: int = 8,
    nodes: Sequence[Node] = (),
) -> Observation:
    """The rates of the last half seconds, oldest first."""
    settings = Settings(autoscaler="asyfunc", slo_s=slo_s, max_batch=max_batch)
    history = History(0.5, 10.0, tuple(rate_rps / 2 for rate_rps in rates_rps))
    return Observation(10.0, "f.ns", settings, instances, tuple(nodes), 0, 0, 0.0, 0.0, history)


def look(
    seen: Observation,
    options: Options,
    *nodes: Node,
    profile: ModelProfile = PROFILE,
    grown: Mapping[str, int] | None = None,
) -> LayerLevel:
    """The actions of layer-level scaling now, with this capacity."""
    known = Knowledge(profile, seen.settings, options)
    return Tick(known, options, seen, seen.ready, dict(grown or {})).scale(FreeCapacity(list(nodes)))


def kinds(line: Timeline) -> list[str]:
    """The actions so far, by name."""
    return [type(action).__name__ for _, decision in line.decisions for action in decision.actions]
