"""Bodies of a Revision, their models and sizes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnomon_autoscaler.replica_policy import victim_order
from gnomon_core.actuation import PartlyRefused
from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.profiles import REREAD_S, ModelProfile
from gnomon_core.scaling import LoadCounters, Resize
from gnomon_core.settings import Settings, read_settings
from gnomon_platforms.knative.autoscaler.instances import FIRST_READ_TIMEOUT_S, READERS, Bodies, ModelReader, RevisionInstances
from gnomon_platforms.knative.autoscaler.objects import RevisionPod, live_revision, revision_pod
from gnomon_platforms.knative.autoscaler.revision import ScaledRevision, Step
from gnomon_platforms.kubernetes.resources import REFUSED_S
from gnomon_profiler import s3
from gnomon_profiler.s3 import S3Repository
from tests.unit.autoscaler.asyfunc_stage import PROFILE
from tests.unit.knative_autoscaler.played import Played, cluster_of, pod, policies
from tests.waiting import until

SETTINGS = Settings()


def bodies(count: int) -> Bodies:
    made = Bodies("f-00001.users")
    for _ in range(count):
        made.add()
    return made


def pods_of(made: Bodies) -> dict[str, str | None]:
    """The pod of each, by its name, None for one without."""
    found = {instance.id: made.pod_of(instance.id) for instance in made.instances(SETTINGS, 0.0)}
    return {id_.rpartition("-")[2]: None if has is None else has.name for id_, has in found.items()}


def states(made: Bodies) -> list[InstanceState]:
    return [instance.state for instance in made.instances(SETTINGS, 0.0)]


def test_as_many_are_ready_as_pods_are() -> None:
    made = bodies(3)
    assert states(made) == [InstanceState.STARTING] * 3
    made.match([pod("a", ready=False), pod("b")])
    # Those that are ready first: the first instances are ready, and one waits for a pod.
    assert pods_of(made) == {"1": "b", "2": "a", "3": None}
    assert states(made) == [InstanceState.READY, InstanceState.STARTING, InstanceState.STARTING]
    made.match([pod("a"), pod("b"), pod("c", ready=False, running=False)])
    assert pods_of(made) == {"1": "b", "2": "a", "3": "c"}
    assert states(made)[:2] == [InstanceState.READY] * 2


def test_an_instance_keeps_its_pod_and_takes_a_free_one_when_that_is_gone() -> None:
    made = bodies(2)
    lost, found = made.match([pod("a"), pod("b")])
    assert (lost, found) == (set(), {"f-00001.users-1", "f-00001.users-2"})
    assert made.match([pod("b"), pod("a")]) == (set(), set())
    assert pods_of(made) == {"1": "a", "2": "b"}
    # The first is let go; the ReplicaSet, which chooses by itself, ends the pod of the second.
    made.remove("f-00001.users-1")
    assert pods_of(made) == {"2": "b"}
    lost, found = made.match([pod("a"), pod("b", ending=True)])
    assert (lost, found) == ({"f-00001.users-2"}, {"f-00001.users-2"})
    assert pods_of(made) == {"2": "a"}
    assert made.of_pod("uid-a") == "f-00001.users-2"
    assert made.of_pod("uid-b") is None
    assert made.match([]) == ({"f-00001.users-2"}, set())


def test_a_pod_that_is_not_ready_is_given_up_for_one_that_is() -> None:
    made = bodies(1)
    made.match([pod("a", ready=False)])
    made.match([pod("a", ready=False), pod("b")])
    assert pods_of(made) == {"1": "b"}
    # Not for another that starts as well.
    made = bodies(1)
    made.match([pod("b", ready=False)])
    made.match([pod("a", ready=False), pod("b", ready=False)])
    assert pods_of(made) == {"1": "b"}


def test_pods_are_resized_to_what_was_asked_for_or_what_their_revision_says() -> None:
    made = bodies(1)
    made.add(4)
    made.match([pod("a"), pod("b", ready=False)])
    assert [(body.name, cores) for body, cores in made.to_resize(None)] == [("b", 4)]
    assert [(body.name, cores) for body, cores in made.to_resize(2)] == [("a", 2), ("b", 4)]
    assert made.to_resize(1)[1:] == []
    # What is asked for later holds from then on, and also where it is what the Revision says.
    made.resize("f-00001.users-1", 3)
    made.resize("f-00001.users-2", 1)
    made.resize("gone", 8)
    assert [(body.name, cores) for body, cores in made.to_resize(2)] == [("a", 3)]


def test_pods_without_an_instance_get_their_revisions_cores() -> None:
    """`activation-scale: 3` does so where the policy wishes for one: all three of them serve."""
    made = bodies(1)
    made.match([pod("a"), pod("b"), pod("c", cores=4.0, effective_cores=4.0)])
    assert [(body.name, cores) for body, cores in made.to_resize(2)] == [("a", 2), ("b", 2)]
    assert not made.to_resize(None)


def test_body_follows_the_cores_of_its_revision() -> None:
    made = bodies(2)
    made.match([pod("a"), pod("b")])
    made.follow(2)
    # For a burst both are larger; then the first is as it was.
    for cores in (4, 2):
        made.resize("f-00001.users-1", cores)
    made.resize("f-00001.users-2", 4)
    made.follow(3)
    assert [(body.name, cores) for body, cores in made.to_resize(3)] == [("a", 3), ("b", 4)]


@pytest.mark.parametrize("fields", [{"running": False, "reported": False}, {"reported": False}, {"ending": True}])
def test_no_pod_is_resized_before_its_container_runs_or_when_it_ends(fields: dict[str, Any]) -> None:
    made = bodies(1)
    made.match([pod("a", **fields)])
    assert not made.to_resize(2)


def test_an_instance_has_the_cores_of_its_pod_as_they_are_now() -> None:
    made = bodies(1)
    made.add(4)
    made.match([pod("a", cores=2.0, effective_cores=1.0)])
    of_pod, without = made.instances(replace(SETTINGS, cores=3), 5.0)
    assert (of_pod.cores, of_pod.node, of_pod.started_s) == (1, "node-a", 5.0)
    assert (without.cores, without.node, without.coming_cores) == (4, "", None)
    made.resize(of_pod.id, 2)
    assert made.instance(of_pod.id, SETTINGS, 0.0).coming_cores == 2
    # A share of a core is no number of them: then the Revision says how many it counts for.
    made = bodies(1)
    made.match([pod("a", cores=0.5, effective_cores=0.5)])
    assert made.instances(replace(SETTINGS, cores=3), 0.0)[0].cores == 3


def test_a_pods_cores_are_those_of_the_container_that_requests_come_to() -> None:
    container = {
        "name": "user",
        "ports": [{"containerPort": 8080}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
    }
    document: dict[str, Any] = {
        "metadata": {"name": "a", "namespace": "users", "uid": "u", "resourceVersion": "7"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "helper"}, {"name": "queue-proxy", "ports": [{}]}, container]},
        "status": {"phase": "Running"},
    }
    read = revision_pod(document)
    assert (read.container, read.cores, read.effective_cores, read.limited) == ("user", 2.0, 0.0, True)
    assert not read.resizable
    document["status"]["containerStatuses"] = [{"name": "user", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}]
    read = revision_pod(document)
    assert (read.effective_cores, read.resizable, read.resizing) == (1.0, True, True)
    pending = {
        "type": "PodResizePending",
        "status": "True",
        "reason": "Infeasible",
        "message": "Node didn't have enough capacity",
    }
    document["status"]["conditions"] = [pending]
    assert revision_pod(document).trouble == "resize Infeasible: Node didn't have enough capacity"
    assert not revision_pod(document).resizing


def test_of_equals_the_youngest_pod_is_let_go_as_its_replica_set_does_it() -> None:
    """Else the one loses its instance and the other its pod, and both lose their Shadows."""
    made = bodies(3)
    made.match([pod("a", created_at=100.0), pod("b", created_at=200.0), pod("c", created_at=300.0)])
    first = min(made.instances(SETTINGS, 1000.0), key=victim_order)
    held = made.pod_of(first.id)
    assert held is not None
    assert (held.name, first.started_s) == ("c", 1000.0)


def test_a_revision_says_whether_its_pods_have_the_volume() -> None:
    document: dict[str, Any] = {"metadata": {"annotations": {"gnomon/cores": "2", "of": "users"}}}
    assert live_revision(document).annotations == {"gnomon/cores": "2"}
    assert not live_revision(document).mounted
    document["spec"] = {"volumes": [{"name": "x", "emptyDir": {}}, {"name": "c", "csi": {"driver": "other"}}]}
    assert not live_revision(document).mounted
    document["spec"]["volumes"].append({"name": "coordinator", "csi": {"driver": "node.gnomon", "readOnly": True}})
    assert live_revision(document).mounted


def test_bodies_may_be_more_or_fewer_than_desired() -> None:
    made = bodies(3)
    made.match([pod("a"), pod("b"), pod("c")])
    made.become(1)
    assert pods_of(made) == {"1": "a"}
    made.become(2)
    made.match([pod("a"), pod("b")])
    assert pods_of(made) == {"1": "a", "4": "b"}


STANDS_STILL_S = 5.0
"""Only an event loop that waits for the repository does not turn within it."""


class Clock(WallClock):
    """Stands still until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


class Repository:
    """Models' profiles, which are read when the test lets them be."""

    def __init__(self) -> None:
        self.profiles: dict[str, ModelProfile] = {}
        self.asked: list[str] = []
        self.held = threading.Event()
        self.stood_still = False

    def profile(self, spec: Any) -> ModelProfile | None:
        model = spec.settings.model
        self.asked.append(model)
        self.stood_still |= not self.held.wait(STANDS_STILL_S)
        return self.profiles.get(model)


class Idle(ScaledRevision):
    """A Revision that takes no step."""

    async def execute(self, step: Step) -> None:
        """Do nothing."""


class Stage:
    """A Revision of one pod, whose policy needs a profile of its model."""

    def __init__(self) -> None:
        self.clock, self.repository, self.poked = Clock(), Repository(), list[str]()
        here = pod()
        self.model("m@1")
        shadows = SimpleNamespace(
            profile=self.repository.profile,
            nodes=lambda **_: (),
            instances=lambda _: (),
            coordinators=False,
            body_found=lambda _: None,
            body_gone=lambda _: None,
        )
        cluster = cluster_of(lambda: self.facts, pods=lambda _: (here,), resizes=False, shadows=shadows, clock=self.clock)
        self.revision = Idle(self.facts, cluster, policies(check_profile=_needs, poke=self.poked.append))
        self.revision.start()

    def model(self, name: str) -> None:
        self.facts = Played({"gnomon/model": name, "gnomon/autoscaler": "asyfunc"}).facts

    @property
    def seen(self) -> tuple[str, ModelProfile | None] | None:
        """By which policy it is scaled, and with which profile; None where nobody is asked."""
        load = self.revision.function_load()
        return None if load is None else (load.settings.autoscaler, load.profile)

    async def settled(self) -> None:
        """Wait until what was read has been taken."""
        await until(lambda: self.revision._model._reading is None)


def _needs(settings: Settings, profile: ModelProfile | None) -> None:
    if settings.model is not None and profile is None:
        raise bad_request("no_profile", "There is none.")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.repository.held.set()
    await made.revision.close()


async def test_policy_runs_once_the_profile_is_read(stage: Stage) -> None:
    stage.repository.profiles["m@1"] = PROFILE
    await until(lambda: stage.repository.asked == ["m@1"])
    assert stage.seen is None, "without its profile its policy would end the Shadows that are there"
    stage.repository.held.set()
    await until(lambda: stage.poked == ["f-00001.users"])
    assert stage.seen == ("asyfunc", PROFILE)
    assert not stage.repository.stood_still


async def test_a_model_that_nobody_has_measured_is_known_to_have_no_profile(stage: Stage) -> None:
    stage.repository.held.set()
    await until(lambda: bool(stage.poked))
    assert stage.seen == ("kpa", None)


async def test_a_repository_that_does_not_answer_is_waited_for_so_long_and_no_longer(stage: Stage) -> None:
    stage.repository.profiles["m@1"] = PROFILE
    assert stage.seen is None
    stage.clock.time_s += FIRST_READ_TIMEOUT_S
    assert stage.seen == ("kpa", None)
    stage.repository.held.set()
    await until(lambda: stage.seen == ("asyfunc", PROFILE))


async def test_a_model_that_is_measured_anew_is_gone_by_and_one_that_is_equal_changes_nothing(stage: Stage) -> None:
    stage.repository.profiles["m@1"] = PROFILE
    stage.repository.held.set()
    await until(lambda: stage.seen == ("asyfunc", PROFILE))

    async def read_again(anew: ModelProfile) -> ModelProfile | None:
        asked, stage.repository.profiles["m@1"] = len(stage.repository.asked), anew
        stage.clock.time_s += REREAD_S
        await until(lambda: stage.seen is not None and len(stage.repository.asked) > asked)
        await stage.settled()
        return None if stage.seen is None else stage.seen[1]

    assert await read_again(replace(PROFILE)) is PROFILE
    other = replace(PROFILE, body_start_s=PROFILE.body_start_s + 1.0)
    assert await read_again(other) is other
    assert len(stage.poked) == 2


async def test_late_profile_of_the_previous_model_is_dropped(stage: Stage) -> None:
    stage.repository.profiles["m@1"] = PROFILE
    await until(lambda: stage.repository.asked == ["m@1"])
    stage.model("n@1")
    assert stage.seen is None
    await until(lambda: stage.repository.asked == ["m@1", "n@1"])
    stage.repository.held.set()
    await until(lambda: bool(stage.poked))
    assert stage.seen == ("kpa", None)


REVISIONS = 40
"""More than the event loop's own threads, on whichever machine."""


class Silent:
    """A server that reads whatever comes, and never answers."""

    def __init__(self) -> None:
        self.taken = self.held = self.most = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken, self.held = self.taken + 1, self.held + 1
        self.most = max(self.most, self.held)
        self.writers.append(writer)
        try:
            await reader.read()
        finally:
            self.held -= 1
            writer.close()


@pytest.fixture
async def silent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Silent]:
    """Where boto3 finds S3. What waits for it is refused when the test is over."""
    made = Silent()
    server = await asyncio.start_server(made.hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {"ENDPOINT_URL": f"http://127.0.0.1:{port}", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    for name, value in {**settings, "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "2"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    yield made
    server.close()
    for writer in made.writers:
        writer.transport.abort()


async def test_silent_repository_is_given_up_after_the_configured_attempts(
    silent: Silent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "READ_TIMEOUT_S", 0.1)
    repository = S3Repository("models", "", tmp_path)
    with pytest.raises(GnomonError) as refused:
        await asyncio.to_thread(repository.get, "m@1")
    assert (refused.value.code, silent.taken) == ("repository_unreachable", 2)


async def test_few_threads_wait_for_it_and_what_was_known_holds(silent: Silent, tmp_path: Path) -> None:
    repository, clock, away = S3Repository("models", "", tmp_path), Clock(), False

    def read(settings: Settings) -> ModelProfile | None:
        if away:
            repository.get_blocks(settings.model or "", ())
        return PROFILE

    settings = read_settings(None, {"gnomon/model": "m@1"})
    revisions = [ModelReader(read, clock, lambda: None) for _ in range(REVISIONS)]
    for revision in revisions:
        revision.follow(settings)
    await until(lambda: all(revision.known for revision in revisions))
    away, clock.time_s = True, clock.time_s + REREAD_S
    for revision in revisions:
        revision.look()
    await until(lambda: silent.held == READERS)
    async with asyncio.timeout(60):
        # Whatever else is done beside the event loop goes on, and is behind what would have been begun by now.
        await asyncio.to_thread(lambda: None)
    assert silent.most == READERS
    assert all(revision.known and revision.profile is PROFILE for revision in revisions)
    for revision in revisions:
        revision.close()


POD = RevisionPod(
    "users",
    "a",
    "f-00001",
    "10.0.0.1",
    running=True,
    ready=True,
    ending=False,
    uid="u",
    cores=1.0,
    effective_cores=1.0,
    reported=True,
)


async def test_cores_that_were_refused_are_not_coming() -> None:
    """A pod of more than two cores is refused by a quota."""
    refusal, requested = GnomonError(403, "kubernetes_refused", "exceeded quota", "Ask for less."), list[int]()
    clock, rules = Clock(), Played().rules
    instances = RevisionInstances(Played().facts.key, cluster_of(pods=lambda _: (POD,), clock=clock), policies())
    instances.begin(1)

    def body() -> Instance:
        [seen] = instances.load(rules, None, LoadCounters()).instances
        return seen

    def reconcile() -> None:
        for step in instances.resizes(rules):
            requested.append(step.cores)
            if step.cores > 2:
                instances.resize_refused(step, refusal)

    async def decided(cores: int) -> None:
        await instances.apply([Resize(body().id, cores)], rules)
        reconcile()

    assert (body().cores, body().coming_cores) == (1, None)
    await decided(4)
    assert (body().cores, body().coming_cores) == (1, None), "nobody is about to give them"
    with pytest.raises(PartlyRefused, match="exceeded quota"):
        await decided(4)
    reconcile()
    assert requested == [4]
    # Another size is another question, and the same one is asked again when its time is over.
    await decided(2)
    assert (requested, body().coming_cores) == ([4, 2], 2)
    clock.time_s += REFUSED_S + 1.0
    reconcile()
    await decided(4)
    assert requested == [4, 2, 2, 4]
