"""The autoscaler behind the gateway's `ScalingControl`: neither part imports the other, and this adapter joins them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.registry import Policies, require, require_profile, scaling_policy
from gnomon_core.interfaces import Capabilities
from gnomon_core.policy_registry import described
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import DecisionRecord
from gnomon_core.settings import Settings
from gnomon_gateway.functions.deployments import OtherReplicas


class ScalingAdapter:
    """A `ScalingControl` that an `Autoscaler` answers. `bind` sets it later, because it observes the adapter's users.

    `capabilities` is called when a function names a policy. While another process leads (`other_replicas`), nothing is decided
    here, and `request_decision` is called with functions that need a decision.
    """

    def __init__(
        self,
        policies: Policies,
        capabilities: Callable[[], Capabilities],
        other_replicas: OtherReplicas | None = None,
        request_decision: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._policies = policies
        self._capabilities = capabilities
        self._other_replicas, self._request_decision = other_replicas or OtherReplicas(), request_decision
        self._bound: Autoscaler | None = None

    def bind(self, autoscaler: Autoscaler) -> None:
        """Use this autoscaler from now on."""
        self._bound = autoscaler

    @property
    def _autoscaler(self) -> Autoscaler | None:
        """The autoscaler, if this process leads."""
        return self._bound if self._other_replicas.leads else None

    def check(self, settings: Settings) -> str:
        policy = scaling_policy(settings.autoscaler, settings, self._policies)
        if self._other_replicas.leads:
            require(policy, self._capabilities())
        return policy.default_scheduler

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None:
        require_profile(scaling_policy(settings.autoscaler, settings, self._policies), settings, profile)

    def makes_shadows(self, settings: Settings) -> bool:
        """Return whether the function's scaling policy makes Shadows where the platform can."""
        needs: frozenset[str] = getattr(scaling_policy(settings.autoscaler, settings, self._policies), "needs", frozenset())
        return "pair" in needs

    def poke(self, function: str) -> None:
        if (autoscaler := self._autoscaler) is not None:
            autoscaler.poke(function)
        elif not self._other_replicas.leads:
            self._request_decision(function)

    def request(self, function: str, instances: int) -> None:
        if (autoscaler := self._autoscaler) is not None:
            autoscaler.request(function, instances)

    def redeployed(self, function: str) -> None:
        if (autoscaler := self._autoscaler) is not None:
            autoscaler.redeployed(function)

    def served(self, function: str) -> None:
        if (autoscaler := self._autoscaler) is not None:
            autoscaler.served(function)

    def start_backoff_s(self, function: str) -> float:
        autoscaler = self._autoscaler
        return autoscaler.start_backoff_s(function) if autoscaler is not None else 0.0

    def removed(self, function: str) -> None:
        # Followers also hold the state that the leader has sent.
        if self._bound is not None:
            self._bound.removed(function)

    def desired(self, function: str) -> int | None:
        autoscaler = self._autoscaler
        return autoscaler.desired(function) if autoscaler is not None else None

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]:
        autoscaler = self._autoscaler
        return autoscaler.decisions(function, limit) if autoscaler is not None else []

    def policies(self) -> Mapping[str, str]:
        return described(self._policies)
