"""How many instances each function has.

The folder shows the stages of one round: `observe` and `windows` make an observation, `policies/` and the `wrappers` around them
wish for a number, `by_count` turns it into actions, `runner` keeps one function's state, and `loop` does it for all, live.
"""

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.executor import PolicyExecutor, at_once
from gnomon_autoscaler.registry import BUILT_IN, SCALING, Policies, counted, require, scaling_policy
from gnomon_autoscaler.runner import Runner
from gnomon_core.policy_registry import Offer, PolicyPlugin

__all__ = [
    "BUILT_IN",
    "SCALING",
    "Autoscaler",
    "Offer",
    "Policies",
    "PolicyExecutor",
    "PolicyPlugin",
    "Runner",
    "at_once",
    "counted",
    "require",
    "scaling_policy",
]
