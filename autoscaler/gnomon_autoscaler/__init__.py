"""The autoscaler: how many instances each function has, and which Shadows.

The modules are the stages of one round: `windows` and `runner` make an observation, `policies/` decide, most of them on a number
of instances that `wrappers` bound and `replica_policy` turns into actions; `controller` does it for all functions, live.
"""

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.executor import PolicyExecutor, at_once
from gnomon_autoscaler.registry import BUILT_IN, SCALING, Policies, counted, replica_policy_plugin, require, scaling_policy
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
    "replica_policy_plugin",
    "require",
    "scaling_policy",
]
