"""The instances of one Revision, and the pod that each of them is.

    wished for ▶ a pod that nobody has ▶ running: it gets its cores ▶ ready ▶ its pod has gone ▶ another one, or none yet

A Deployment has a number, and its ReplicaSet makes and removes whom it likes. So an instance is wished for without a pod, takes
one that nobody has, those that are ready first, and keeps it for as long as it is there. Where the ReplicaSet ends another pod
than that of the instance which was let go, that one's pod is free, and the instance that has lost its own takes it.

An instance has the cores that were asked for it, or else those that its Revision says (`gnomon/cores`), or else those that its
pod was born with. A pod is resized in place, as soon as its container runs: before it is ready, and again whenever it is to have
others. Example: a template of 1 core, `gnomon/cores: 2`, a policy that asked for 4 for one of three instances: 2, 4 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.settings import Settings
from gnomon_platforms.knative.scaling.objects import RevisionPod


class Bodies:
    """Those of one Revision. `function` is its name as everywhere, REVISION.NAMESPACE."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._numbers = 0
        self._said: int | None = None
        self._free: Sequence[RevisionPod] = ()
        """Pods that are no instance: those that Knative's bounds keep beyond the policy's number, or that are about to end."""
        self._asked: dict[str, int | None] = {}
        """By instance, the cores that were asked for it; None for as many as the Revision says."""
        self._pods: dict[str, RevisionPod] = {}
        self._youngest_at = 0.0
        """When the youngest of these pods was made, by Kubernetes' clock."""

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._asked

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._asked))

    def become(self, count: int) -> Sequence[str]:
        """There are so many from now on, or are to be; who is none any more."""
        surplus = list(self._asked)[count:]
        for instance_id in surplus:
            self.remove(instance_id)
        while len(self._asked) < count:
            self.add()
        return surplus

    def add(self, cores: int | None = None) -> None:
        """One more is wished for."""
        self._numbers += 1
        # Revisions of two namespaces may have one name.
        self._asked[f"{self._function}-{self._numbers}"] = cores

    def remove(self, instance_id: str) -> None:
        """One fewer. Its pod is free, until the ReplicaSet has ended one."""
        self._asked.pop(instance_id, None)
        self._pods.pop(instance_id, None)

    def resize(self, instance_id: str, cores: int) -> None:
        """It is to have these cores. Unknown ids are ignored."""
        if instance_id in self._asked:
            self._asked[instance_id] = cores

    def match(self, pods: Iterable[RevisionPod]) -> tuple[set[str], set[str]]:
        """Give each instance its pod, as pods are now; who has lost the one that it had, and who has another."""
        living = {pod.uid: pod for pod in pods if not pod.ending}
        before = {id_: pod.uid for id_, pod in self._pods.items()}
        now = {id_: living[uid] for id_, uid in before.items() if uid in living and living[uid].ready}
        taken = {pod.uid for pod in now.values()}
        free = sorted((pod for uid, pod in living.items() if uid not in taken), key=_quality)
        for id_ in self._asked:
            if id_ in now or not free:
                continue
            own = next((pod for pod in free if pod.uid == before.get(id_)), None)
            chosen = free[0] if own is None or free[0].ready else own
            free.remove(chosen)
            now[id_] = chosen
        self._free = free
        self._pods = now
        self._youngest_at = max((pod.created_at for pod in now.values()), default=0.0)
        changed = {id_ for id_ in before.keys() | now.keys() if id_ not in now or now[id_].uid != before.get(id_)}
        return changed & before.keys(), changed & now.keys()

    def pod_of(self, instance_id: str) -> RevisionPod | None:
        return self._pods.get(instance_id)

    def of_pod(self, uid: str) -> str | None:
        """The instance that is this pod."""
        return next((id_ for id_, pod in self._pods.items() if pod.uid == uid), None)

    def instances(self, settings: Settings, now_s: float) -> tuple[Instance, ...]:
        """Each as it is."""
        return tuple(self.instance(id_, settings, now_s) for id_ in self._asked)

    def instance(self, id_: str, settings: Settings, now_s: float) -> Instance:
        pod = self._pods.get(id_)
        state = InstanceState.READY if pod is not None and pod.ready else InstanceState.STARTING
        has = 0 if pod is None else int(pod.effective_cores or pod.cores)
        asked = self._asked[id_]
        cores = has or asked or settings.cores
        node, memory_bytes = ("", 0) if pod is None else (pod.node, pod.memory_bytes)
        # As much older than the youngest as its pod is: of equals the youngest is let go, as ReplicaSets do it.
        started_s = now_s if pod is None else now_s - (self._youngest_at - pod.created_at)
        coming = asked if asked != cores else None
        return Instance(id_, self._function, 1, node, cores, memory_bytes, state, started_s, coming_cores=coming)

    def follow(self, said: int | None) -> None:
        """What the Revision says now: whoever was asked to have as many as it said before has these."""
        if said != self._said:
            self._asked = {id_: None if asked == self._said else asked for id_, asked in self._asked.items()}
            self._said = said

    def to_resize(self, said: int | None) -> Sequence[tuple[RevisionPod, int]]:
        """The pods that have not the cores that they are to have, and how many those are. `said` is what the Revision says.

        Pods that are no instance serve as well: they get what it says where they have less.
        """
        wanted = [(pod, self._asked[id_] or said) for id_, pod in self._pods.items()]
        wanted += [(pod, said) for pod in self._free if said is not None and pod.cores < said]
        return [(pod, cores) for pod, cores in wanted if cores is not None and pod.resizable and pod.cores != cores]


def _quality(pod: RevisionPod) -> tuple[bool, bool, float, str]:
    """Ready ones first, then those that run, then by age."""
    return not pod.ready, not pod.running, pod.created_at, pod.name
