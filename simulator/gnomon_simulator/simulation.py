"""A cluster in virtual time: functions that share nodes, each with its own arrivals, driven until the last answer.

    result = simulate([FunctionPlan("echo", settings, profile, arrivals)], [NodePlan("node-1", 16)], seed=1)["echo"]

Everything follows from the plans and the seed; a run repeats to the last bit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from gnomon_simulator.events import Events, stream
from gnomon_simulator.function_plan import FunctionPlan
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_function import SimulatedFunction
from gnomon_simulator.simulated_node import NodePlan
from gnomon_simulator.simulated_platform import SimulatedPlatform


def simulate(plans: Sequence[FunctionPlan], nodes: Sequence[NodePlan], seed: int = 1) -> Mapping[str, FunctionResult]:
    """Run the functions together and return what each of them did, by name."""
    events = Events()
    platform = SimulatedPlatform(nodes, events, stream(seed, "execution"))
    functions = [SimulatedFunction(plan, platform, events) for plan in plans]
    with _uncollected():
        for function in functions:
            function.begin()
        events.run()
    platform.end()
    return {function.plan.name: function.result() for function in functions}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cycle collector, which would walk over every waiting request again and again and find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
