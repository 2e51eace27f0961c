"""The interfaces of all replaceable parts of Gnomon, as Protocols.

Each Protocol's docstrings are its contract; `tests/contracts` has a suite for each, which every implementation inherits. Policies
are pure functions: they read no clock, draw no random numbers and do no I/O, so that the live loops and the simulator use the
same objects. The values in the Protocols' signatures are here as well: a platform's capabilities and requests, stored objects,
build results, and instances' log lines.

`PlatformListener` is the counterpart of `Platform`: the events that a platform reports to the gateway.

    create ▶ instance_ready, or instance_gone ◀ destroy, a crash, a lost node
    create_shadow ▶ pair_changed … instance_gone

Instances of some platforms, such as a cluster's, outlive the gateway. Every other platform ends its instances when it stops.

    a gateway stops ▶ answers its requests ▶ its instances keep running
    a gateway starts ▶ `adopt` for each function ▶ its instances are reported as ready, like new ones
                                                 ▶ `shadow_found` ▶ `pair_changed`: their Shadows continue to work for them
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from gnomon_core.applications import RegisteredModel
from gnomon_core.engines import ChosenEngine
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, Node
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import Decision, Observation, PolicyState
from gnomon_core.scheduling import FleetView, QueueView, ScheduleAction
from gnomon_core.signature import ModelSignature
from gnomon_core.variants import Choice, Query, VariantState
from gnomon_core.wire import Frame


class PlatformListener(Protocol):
    """Callbacks from a platform to its owner. They run on the event loop and must return at once."""

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None: ...

    def instance_gone(self, instance_id: str, reason: str) -> None:
        """Handle the end of an instance, Body or Shadow, requested or not. Called exactly once for each created instance."""
        ...

    def pair_changed(self, body: Instance) -> None:
        """Handle a change of a Body's Shadows: its next batch uses `body.shadows` and their pairs, or the Body alone."""
        ...

    def shadow_found(self, shadow: Instance) -> None:
        """Handle a Shadow of an earlier process, which continues to serve its Body, as if it had been created now.

        This is the first report of the Shadow. The owner may destroy it like any other.
        """
        ...

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a platform. A policy that needs others is refused when it is chosen, not when it acts."""

    place: bool
    size: bool
    victim: bool
    resize: bool
    pair: bool
    promote: bool = False
    quick_model_starts: bool = False
    """True if a model's instance starts in milliseconds, so that idle models scale to zero by default."""
    own_scheduler: bool = False
    """True if the platform's own scheduler places instances. A policy's node is then only a preference, and an instance stays
    STARTING until there is capacity, with the reason in `Explains.trouble`; otherwise `create` refuses both."""


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """A request for an instance: function, version, size, node, and the secrets that it may read.

    `memory_mb` is a memory size other than the function's own, for platforms on which it determines the cores; others ignore it.
    With `idle_cores` the instance keeps only these between batches and borrows up to `cores` for each (`LendsCores`).
    """

    spec: FunctionSpec
    version: int
    cores: int
    node: str | None
    secrets: Mapping[str, bytes]
    memory_mb: int | None = None
    idle_cores: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """The CPU seconds of all instances, including those that have ended, and their present memory.

    `cost` is in dollars, for platforms that bill usage.
    """

    cpu_s: float
    memory_bytes: int
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredFunction:
    """A function in the store; `version` grows with each change that needs new instances."""

    spec: FunctionSpec
    version: int
    created_at: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class StoredNamespace:
    """A namespace that a user created. The default namespace always exists and is not stored."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model in the repository: its signature and the paths of its verified files."""

    name: str
    version: str
    signature: ModelSignature
    program: Path
    weights: Path
    sha256: Mapping[str, str]
    layers: Path | None = None
    """The program's layer blocks; None for a model that was captured without them."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """All files of the entry by name, graphs of other engines included (`gnomon_core.engines`)."""


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a build: an image name and the id of its content."""

    image: str
    content_id: str


class ScalingPolicy(Protocol):
    """A policy that decides on the number and sizes of a function's instances.

    The same observation and state give the same decision. `decide` may run in a worker thread, with a time limit for third
    parties' policies; if it raises or overruns, the last decision stays in force. It never requests fewer than `scale.min` or
    more than `scale.max` instances, unless the operator has (`Observation.requested`).
    """

    name: str
    period_s: float
    """Seconds between two decisions; earlier only if a request waits and no instance is live."""
    default_scheduler: str
    """The scheduling policy of functions that name none."""

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Decide on actions, and return the state for the next call."""
        ...


class SchedulingPolicy(Protocol):
    """A policy that decides when a batch is dispatched from the queue, and to which idle instance.

    It is called at each arrival, whenever an instance becomes idle, and at the time of a `WaitUntil`. It dispatches only requests
    of the given lane, each at most once, only to idle instances, at most `max_batch` samples to each, and no instance twice. It
    runs on the request path and takes a few microseconds, whatever the length of the queue.
    """

    name: str

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        """The actions in their order; empty for none."""
        ...


class LatencyModel(Protocol):
    """The model of batches' execution times, in seconds."""

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        """The predicted seconds of a batch of `batch` samples on `body_cores` cores, with the Shadows of `pair`; None if unknown.

        For an instance that is sized by memory, `body_cores` is its memory size (`Instance.size`).
        """
        ...


class BatchChannel(Protocol):
    """The channel to one instance, with at most `Instance.concurrency` batches in flight, usually one.

    `run` calls `done` exactly once, with a RESULT frame that has one member per member of the batch in the same order, or with
    None if the instance was lost before it answered, or with NOT_TAKEN if it is about to end and answers only what is in flight.
    A STREAM_START begins a stream: `stream` gets that frame, each STREAM_DATA and the STREAM_END; `done` is then called with an
    empty RESULT, or with None if the stream broke off. Without `stream` the parts are joined: `done` gets a RESULT with the whole
    answer, or with its failure.
    """

    @property
    def unread(self) -> Collection[int]:
        """The ids of the batches without an answer that the instance has certainly not received, so that none of them ran."""
        ...

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: Callable[[Frame], None] | None = None) -> None: ...

    def cancel(self, batch_id: int) -> None:
        """Cancel a batch: no client waits for it. The instance may stop early; `done` is still called."""
        ...

    async def probe(self, timeout_s: float) -> bool:
        """Return whether the instance answers a canary in time. A fully busy instance may not."""
        ...


class Platform(Protocol):
    """The place where instances run: a machine, a cluster or a cloud service.

    Commands are idempotent; their effects are reported to the listener. A platform never adds an instance by itself.
    """

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """The platform's present capabilities."""
        ...

    async def start(self, listener: PlatformListener) -> None: ...

    async def stop(self) -> None:
        """End every instance and return when all are gone."""
        ...

    def check(self, spec: FunctionSpec) -> None:
        """Raise a 400 `GnomonError` if this function can never run here: an unknown image, a missing model."""
        ...

    def revision(self, spec: FunctionSpec) -> str:
        """Identity of the function's present image and model. When it changes, running instances are out of date."""
        ...

    async def prepare(self, spec: FunctionSpec) -> None:
        """Prepare a quick first start: a warm zygote, verified weights. Idempotent."""
        ...

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        """Inputs and outputs of the function's model; None for a function that takes plain HTTP requests."""
        ...

    def nodes(self) -> tuple[Node, ...]: ...

    def instances(self, function: str) -> tuple[Instance, ...]:
        """The function's instances that are not gone, oldest first, without fields that only the dispatcher knows (`busy`)."""
        ...

    async def create(self, request: InstanceRequest) -> Instance:
        """Create an instance and return it STARTING. It is one of `instances` from the first suspension of this coroutine on.

        Raises:
            GnomonError: 503 `no_capacity` where no node has enough free capacity.

        """
        ...

    async def destroy(self, instance_id: str) -> None:
        """Stop an instance that has nothing in flight. Unknown ids are ignored."""
        ...

    async def resize(self, instance_id: str, cores: int) -> None:
        """Give an instance other cores. Unknown ids are ignored.

        `instances` has the new number once it is in force; if that is after the return, `instance_ready` is called once more.

        Raises:
            GnomonError: 503 `no_capacity`; the instance keeps its cores.

        """
        ...

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        """Start a Shadow for a ready Body and return it STARTING; `pair_changed` follows when the two are connected.

        Raises:
            GnomonError: 503 `no_capacity` where its node, the Body's unless the pair names another, has no room; 404
                `no_such_node` where no Shadow of this Body can be on a node of that name; 409 `no_such_body` where the Body has
                gone or has `gnomon_core.pairs.MAX_SHADOWS`.

        """
        ...

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Promote a Shadow: it loads the rest of the model and becomes a Body, which is returned STARTING and reported as one.

        It continues to work for its Body until the whole model is loaded; `pair_changed` and `instance_ready` follow.

        Raises:
            GnomonError: 503 `no_capacity` where the node has no room for a whole model, 409 `no_such_shadow` where it has gone,
                works for no Body yet, or is being promoted already; nothing has changed then.

        """
        ...

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """Give a Shadow other blocks or another split. Unknown ids are ignored."""
        ...

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """The measured profile of the function's model; None without one.

        It has network times only if a Shadow can be on another node than its Body.
        """
        ...

    def usage(self, function: str) -> Usage:
        """Present resource usage of the function's instances."""
        ...


class FunctionStore(Protocol):
    """Durable store of functions, secrets and namespaces. When a call returns, its change is on disk.

    Calls block; the gateway makes them in worker threads.
    """

    def put_function(self, stored: StoredFunction) -> None: ...

    def delete_function(self, key: FunctionKey) -> bool:
        """Delete a function. Returns whether it existed."""
        ...

    def functions(self) -> Sequence[StoredFunction]: ...

    def put_secret(self, key: FunctionKey, value: bytes) -> None: ...

    def secret(self, key: FunctionKey) -> bytes | None: ...

    def delete_secret(self, key: FunctionKey) -> bool: ...

    def secrets(self, namespace: str) -> Sequence[str]:
        """The names of a namespace's secrets, sorted."""
        ...

    def put_namespace(self, stored: StoredNamespace) -> None: ...

    def delete_namespace(self, name: str) -> bool:
        """Delete a namespace, which its owner has emptied before: contents are not deleted. Returns whether it existed."""
        ...

    def namespaces(self) -> Sequence[StoredNamespace]:
        """All namespaces, sorted by name."""
        ...

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        """Call `changed` after each change of a function, until the returned function is called."""
        ...


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The health of a store outside the gateway.

    While the store is not available, the gateway serves the last known state. `unsent` is the number of changes that it has not
    received yet, `since_s` the time of the last change of `available` in seconds since 1970, `problem` the reason.
    """

    kind: str
    available: bool = True
    since_s: float = 0.0
    unsent: int = 0
    problem: str = ""


class MetadataStore(Protocol):
    """Durable store of the models that are registered for applications, with what was measured of their variants.

    When a call returns, its change is on disk. Calls block; the gateway makes them in worker threads, and never for a query. A
    store outside the gateway may be slow or unavailable: calls return within some seconds, with the last known state.
    """

    def put_model(self, registered: RegisteredModel) -> None:
        """Register a model for an application, or replace what is known of it."""
        ...

    def delete_model(self, application: FunctionKey, model: str) -> bool:
        """Delete a registered model. Returns whether it existed."""
        ...

    def registered_models(self) -> Sequence[RegisteredModel]:
        """All registered models, sorted by application and model."""
        ...

    def watch_models(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after another process has changed a registered model, until the returned function is called."""
        ...

    def health(self) -> StoreHealth:
        """The store's present health; returns at once."""
        ...


class VariantSelector(Protocol):
    """The selection of the variant that answers a query, among the variants of one application.

    It runs on the request path: it does not wait, reads no store, and takes at most some microseconds.
    """

    def select(self, query: Query) -> Choice:
        """The choice for this query; where no variant satisfies it, the nearest one, with its shortfall.

        Raises:
            GnomonError: 404 for an architecture or a variant that is not among them; 503 where there is none at all.

        """
        ...

    def instance_loaded(
        self,
        variant: str,
        worker: str,
        state: VariantState = VariantState.ACTIVE,
        load: float = 0.0,
        *,
        instances: int = 1,
        pending: Callable[[], int] = ...,
    ) -> None:
        """Record the variant's instances on this worker, with their state and the used share of their saturation rate.

        `pending` gives the samples that wait or execute there; a selection calls it.
        """
        ...

    def instance_unloaded(self, variant: str, worker: str) -> None:
        """Record that the variant is no longer loaded on this worker; ignored if it was not."""
        ...


class ModelRepository(Protocol):
    """Models by name and version. Listed entries are complete and verified; an incomplete or corrupt entry is never served."""

    def get(self, reference: str) -> ModelEntry:
        """The entry of `name` (its newest version) or `name@version`.

        Raises:
            GnomonError: 404 `model_not_found`, listing the models; 500 `model_corrupt`.

        """
        ...

    def get_blocks(self, reference: str, blocks: Iterable[int]) -> ModelEntry:
        """The entry as a Shadow needs it: the weight file has the tensors of these layer blocks, and perhaps no others.

        An entry without layer blocks comes whole.

        Raises:
            GnomonError: as `get`.

        """
        ...

    def put(self, name: str, version: str, files: Mapping[str, bytes]) -> ModelEntry:
        """Add a version, atomically.

        The same name, version and content again is no error, and a file that was not there, such as the layer blocks of a model
        that was captured without them, is added. Another content is a 409.
        """
        ...

    def put_files(self, name: str, version: str, files: Mapping[str, Path]) -> ModelEntry:
        """Put a model as `put` does, from paths: the files may be large and are not read into memory.

        The files belong to the repository from now on, which may move them to another place.
        """
        ...

    def list(self) -> Iterable[ModelEntry]: ...

    def verify(self, reference: str) -> bool:
        """Return whether every file still has the SHA-256 that the entry states."""
        ...


class Builder(Protocol):
    """The builder of handlers: makes an image that the platform can start from a handler's folder and requirements.

    The same content has the same id and is built once.
    """

    async def build(self, archive: Path, log: Callable[[str], None]) -> Built:
        """Build what OpenFaaS's remote-builder protocol sends: a tar with `com.openfaas.docker.config` and `context/`.

        Raises:
            GnomonError: 422 `build_failed` with what went wrong; its whole log went to `log`.

        """
        ...


@runtime_checkable
class PersistentPlatform(Protocol):
    """Further interface of a `gnomon_core.interfaces.Platform` whose `stop` leaves its instances running."""

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[Instance, ...]:
        """Adopt the instances of this function that an earlier process left running, of this version or an earlier one.

        They are returned STARTING, with their id and version; later events are reported as after `create`. Their Shadows are
        reported (`PlatformListener.shadow_found`) once their nodes have listed them; Shadows whose Body is not adopted end.
        """
        ...

    def scaling_conflict(self, function: str) -> GnomonError | None:
        """The error if this process may not create, resize or destroy the function's instances now; None if it may."""
        ...


@runtime_checkable
class Warns(Protocol):
    """Further interface of a platform whose users inspect functions with the platform's own tools."""

    def warn(self, function: str, reason: str, text: str) -> None:
        """Publish a warning about a function; `reason` is one word. Repeated calls publish it once."""
        ...


@runtime_checkable
class Restartable(Protocol):
    """Further interface of a platform whose users restart functions with the platform's own tools."""

    def watch_restarts(self, requested: Callable[[FunctionKey, int], None]) -> None:
        """Call `requested` when a user restarts all instances of this version of a function; repeated calls are possible."""
        ...


@runtime_checkable
class RunsEngines(Protocol):
    """Further interface of a platform that can run a model on more than one engine."""

    def engine(self, spec: FunctionSpec) -> ChosenEngine | None:
        """The engine that runs the function's model now; None for a function without a model."""
        ...


class CoreLender(Protocol):
    """The arbiters of the nodes' cores, for instances that borrow cores for each batch (`gnomon_core.core_arbiter`)."""

    def lend(self, instance_id: str, cores: int) -> int:
        """Lend up to so many cores for the instance's next batch, never fewer than it keeps. Returns how many it has."""
        ...

    def give_back(self, instance_id: str) -> None:
        """Take back the cores that the instance's last batch borrowed. Unknown ids are ignored."""
        ...

    def share(self, instance_id: str) -> int:
        """The most cores that a batch of this instance may have now; 0 where it does not borrow."""
        ...


@runtime_checkable
class LendsCores(CoreLender, Protocol):
    """Further interface of a platform with nodes that lend cores (`Node.lends`).

    A batch that has borrowed cores is sent with their number (`Frame.cores`), and gives them back when it ends; so does an
    instance that ends or is destroyed. Instances whose engine has a fixed number of threads (`gnomon_core.engines.can_borrow`)
    do not borrow: `create` and `resize` refuse `idle_cores` with 409 `cannot_borrow`.
    """

    async def resize(self, instance_id: str, cores: int, idle_cores: int | None = None) -> None:
        """As `Platform.resize`; with `idle_cores` the instance borrows up to `cores` for each batch from now on.

        Raises:
            GnomonError: as `Platform.resize`; 409 `cannot_borrow`.

        """
        ...


@runtime_checkable
class Explains(Protocol):
    """Further interface of a platform that knows why an instance takes long to start."""

    def trouble(self, function: str) -> str:
        """The reason why starting instances are stuck, in one line; empty if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log line of one instance, which has the name that its platform uses; `at` in seconds since 1970."""

    function: FunctionKey
    instance: str
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A selection of log lines: `instance` "" selects all instances, `tail` 0 all lines; `since` is a Unix time in seconds."""

    function: FunctionKey
    instance: str = ""
    since: float | None = None
    tail: int = 0

    def wants(self, line: LogLine) -> bool:
        return (not self.instance or line.instance == self.instance) and (self.since is None or line.at >= self.since)
