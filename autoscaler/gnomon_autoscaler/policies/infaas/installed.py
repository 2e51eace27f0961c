"""The policy that scales applications with what is installed: the integer program where scipy is, else the heuristic alone.

scipy comes with the extra `infaas` and is imported with the first decision, which a controller makes in a thread: HiGHS lets
other threads run while it solves.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

from gnomon_autoscaler.policies.infaas import greedy
from gnomon_autoscaler.policies.infaas.floors import FloorState, decide_with_floors
from gnomon_autoscaler.policies.infaas.overload import OverloadState, decide_in_overload
from gnomon_autoscaler.policies.infaas.problem import Options
from gnomon_core.variant_scaling import ApplicationObservation, ScalingPlan

State = OverloadState[FloorState[greedy.GreedyState]]
Decide = Callable[[ApplicationObservation, State], tuple[ScalingPlan, State]]
INITIAL: State = OverloadState(FloorState(greedy.GreedyState()))
"""The state of the policy before its first decision."""
TIME_LIMIT_S = 0.3
"""The time limit of the integer program, in a decision that is made each second."""
_OPTIONS = Options(time_limit_s=TIME_LIMIT_S)


def installed_policy(package: str = "scipy") -> Decide:
    """The policy; `package` is what the integer program needs."""
    planned = partial(decide_with_floors, greedy.decide if importlib.util.find_spec(package) is None else _exact)
    return partial(decide_in_overload, planned)


def _exact(observation: ApplicationObservation, state: greedy.GreedyState) -> tuple[ScalingPlan, greedy.GreedyState]:
    from gnomon_autoscaler.policies.infaas import exact  # noqa: PLC0415 - imports scipy

    return exact.decide(observation, state, _OPTIONS)
