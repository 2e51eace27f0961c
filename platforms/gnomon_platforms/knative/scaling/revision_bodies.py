"""The Bodies of all Revisions, as Shadows ask for them: by their names, and by their pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gnomon_core.functions import FunctionKey, parse_key
from gnomon_core.pairs import Pair
from gnomon_platforms.knative.scaling.revision import ScaledRevision
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.nodes.home import BodyPod


class RevisionBodies:
    """See `gnomon_platforms.nodes.home.Bodies`. `poke` hears of the Revision whose Body works with others now."""

    def __init__(self, scaled: Mapping[FunctionKey, ScaledRevision], poke: Callable[[str], None]) -> None:
        self._scaled, self._poke = scaled, poke

    def of_instance(self, body_id: str) -> BodyPod | None:
        found = self._owner(body_id)
        return None if found is None else found.body(body_id)

    def of_pod(self, uid: str) -> BodyPod | None:
        names = (one.instances.of_pod(uid) for one in self._scaled.values())
        return self.of_instance(next(filter(None, names), ""))

    def placing(self, body: BodyPod) -> Placing:
        found = self._owner(body.instance.id)
        return Placing() if found is None else found.instances.placing

    def works_with(self, body_id: str, shadows: Mapping[str, Pair]) -> None:
        found = self._owner(body_id)
        if found is not None:
            found.instances.works_with(body_id, shadows)
            self._poke(found.name)

    def _owner(self, body_id: str) -> ScaledRevision | None:
        """The Revision whose name a Body's begins with."""
        function = body_id.rpartition("-")[0]
        return self._scaled.get(parse_key(function)) if function else None
