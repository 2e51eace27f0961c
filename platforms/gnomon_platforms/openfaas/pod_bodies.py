"""The Bodies of the platform's instances, for `gnomon_platforms.nodes`."""

from __future__ import annotations

from collections.abc import Mapping

from gnomon_core.interfaces import PlatformListener
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.objects.placing import Placing, read_constraints
from gnomon_platforms.nodes.node_shadow import BodyPod
from gnomon_platforms.openfaas.workloads import Life


class PodBodies:
    """See `gnomon_platforms.nodes.node_shadow.Bodies`. `lives` are the instances that have not ended."""

    def __init__(self, lives: Mapping[str, Life], listener: PlatformListener) -> None:
        self._lives, self._listener = lives, listener

    def of_instance(self, body_id: str) -> BodyPod | None:
        life = self._lives.get(body_id)
        if life is None or life.stopping or life.pod is None or life.pod.node is None:
            return None
        return BodyPod(life.instance, life.request.spec, life.pod.uid, life.pod.node)

    def of_pod(self, uid: str) -> BodyPod | None:
        found = (life.instance.id for life in self._lives.values() if life.pod is not None and life.pod.uid == uid)
        return self.of_instance(next(found, ""))

    def placing(self, body: BodyPod) -> Placing:
        return read_constraints(body.spec.constraints)

    def set_pairs(self, body_id: str, shadows: Mapping[str, Pair]) -> None:
        life = self._lives.get(body_id)
        if life is not None and not life.gone:
            life.instance = life.instance.working_with(shadows)
            self._listener.pair_changed(life.instance)
