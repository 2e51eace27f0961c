"""`fixed+shadows`: the requested number of Bodies, with Shadows until they have started. It scales members of applications.

    n asked for, m < n ready ─▶ n − m Bodies start; meanwhile Shadows of the ready ones, for what n Bodies would answer
    n ready ──────────────────▶ the Shadows end

Another policy decides on n. When that asks for another Body, the ready ones are overloaded or about to be; a Shadow loads less
than a Body and helps until the Body serves. A Body is not withheld to see whether a Shadow suffices: docs/decisions/0071 has the
comparison. Without a profile of the model's blocks, or room for a Shadow beside the new Bodies, this is `fixed`.
"""

from __future__ import annotations

from gnomon_autoscaler.policies.fixed import Fixed
from gnomon_autoscaler.policies.gnomon.shadows import Pairs, with_shadows
from gnomon_autoscaler.replica_policy import ReplicaPolicyAdapter, memory_of
from gnomon_autoscaler.wrappers import standard
from gnomon_core.scaling import Decision, Observation, PolicyState

NAME = "fixed+shadows"
PERIOD_S = 0.5
"""The time in seconds within which a Shadow ends once the Bodies have started."""


class Bridging(ReplicaPolicyAdapter):
    """The number of `fixed`, and Shadows while fewer Bodies are ready."""

    # The pairings of a profile are computed with the first Shadow, in up to a second.
    is_quick = False

    def __init__(self) -> None:
        super().__init__(standard(Fixed(NAME, period_s=PERIOD_S)))
        self._pairs = Pairs()

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Actions towards the number of Bodies, and the Shadows until they have started."""
        desired = self._policy.desired_count(observation, memory_of(state, self.name, self.version))
        bodies = self.actions(desired.count, observation)
        # Without a ready Body there is none to help.
        helps = desired.count > len(observation.ready) and bool(observation.ready or observation.shadows)
        decision = with_shadows(desired, desired.count if helps else None, self._pairs, observation, bodies)
        return decision, PolicyState(self.name, self.version, desired.memory)
