"""What was written for a function, and may not be seen of it yet: informers are behind, and who wrote may have had no answer.

A plan is made from what is seen. Two things would be done otherwise each time for as long as they are not: an instance would be
given another pod than the one that it was given, and have two; and a spare would be given out that a lowered number may cost.
"""

from __future__ import annotations

from gnomon_platforms.kubernetes.objects.removal import Lowered
from gnomon_platforms.openfaas.planning import Claim, Scale, Step


class Unseen:
    """`claimed` is the pod, by name, that each instance was to be given; `lowered` how the number was lowered last."""

    def __init__(self) -> None:
        self.claimed: dict[str, str] = {}
        self.lowered: Lowered | None = None

    def sent(self, step: Step) -> None:
        """A step is about to be written. It may be carried out although nobody says so."""
        if isinstance(step, Claim):
            self.claimed[step.waiting.id] = step.pod.name
        elif isinstance(step, Scale) and step.lowered is not None:
            self.lowered = step.lowered

    def written(self, step: Step) -> None:
        """A step was carried out: a number that was raised costs nobody."""
        if isinstance(step, Scale):
            self.lowered = step.lowered

    def forget(self, instance_id: str) -> None:
        """An instance has ended."""
        self.claimed.pop(instance_id, None)
