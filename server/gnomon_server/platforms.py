"""The platforms that `gnomon serve` runs functions on: a registry, and the interface that the composition root uses.

A new platform is a folder in `gnomon_platforms`, a subclass of `Backend` and a line in `PLATFORMS`. Modules are named by strings,
so that the command line knows every platform without importing one.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import FunctionStore, MetadataStore, ModelRepository, Platform
from gnomon_core.packaging import how_to_install
from gnomon_platforms.images import BuiltImages
from gnomon_server.options import ServeOptions

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from gnomon_autoscaler.registry import Policies
    from gnomon_gateway.functions.logs import LogReader
    from gnomon_gateway.functions.manager import Manager
    from gnomon_gateway.functions.service import FunctionService
    from gnomon_server.store_changes import Work


@dataclass(frozen=True, slots=True)
class Entry:
    """A platform in the registry: its `Backend`, the Python package that it needs, and the extra that installs that package."""

    module: str
    backend: str
    title: str
    package: str = ""
    extra: str = ""


PLATFORMS = {
    "local": Entry("gnomon_server.machine", "LocalBackend", "This machine"),
    "lambda": Entry("gnomon_server.machine", "LambdaBackend", "AWS Lambda", "boto3", "lambda"),
    "openfaas": Entry("gnomon_server.kubernetes", "ClusterBackend", "Kubernetes", "kubernetes", "kubernetes"),
    "provider": Entry("gnomon_server.provider", "ProviderBackend", "A provider"),
}
"""The platforms by the value of `--platform`."""


class ServingPlatform(Platform, Protocol):
    """A platform that runs handlers built by this process."""

    def contents(self) -> set[str]:
        """The built handlers whose instances have not ended."""
        ...


class Backend:
    """A store of functions and a platform that runs them, as the composition root uses them.

    A subclass's constructor sets `store`, `platform` and `place`, the key of learned latency corrections: those of one place are
    not valid in another. The default hooks suit a single process that owns its platform.
    """

    orchestration: ClassVar[str] = "local"
    """The name of the orchestration, as faas-cli shows it."""
    isolates_users: ClassVar[bool] = True
    """True if functions run on this machine, so that calls from their user ids are refused."""
    provided: ClassVar[bool] = False
    """True if replicas are a foreign provider's."""
    shares = False
    """True if other gateway replicas share the functions."""
    store: FunctionStore
    metadata: MetadataStore | None = None
    """The store of registered models; None where there are no applications."""
    platform: ServingPlatform
    place: str

    def policies(self, policies: Policies) -> Policies:
        """The scaling policies that functions may name here."""
        return policies

    def functions(self, manager: Manager) -> FunctionService:
        """The functions as the API shows them."""
        return manager

    async def fetch_model(self, reference: str) -> None:
        """Make the model that a function names available to its instances."""

    @property
    def stored_logs(self) -> LogReader | None:
        """A reader of logs that the platform stores; None if the gateway holds the logs."""
        return None

    def epoch(self) -> int:
        """The epoch of batches, a fencing token: an instance refuses a gateway with an older epoch."""
        return 1

    def collectors(self) -> Iterable[Collector]:
        """The platform's own metrics collectors."""
        return ()

    async def begin(self, port: int) -> int:
        """Wait until this process may serve. Returns the port to listen on."""
        return port

    def follow(self, manager: Manager, namespaces: Callable[[], Work]) -> None:
        """Follow changes by others in the store; `namespaces` runs after a namespace has changed."""

    async def release_port(self) -> None:
        """Stop listening: the gateway's server is about to listen on this port."""

    async def lead(self) -> None:
        """Prepare to decide and to write: this process has become the leader of several."""

    def leave(self) -> None:
        """Prepare for the end of this process, before its drain."""

    async def end(self) -> None:
        """Close all connections, once the store and the platform are unused."""


def backend_of(options: ServeOptions, repository: ModelRepository, built: BuiltImages, clock: Clock) -> Backend:
    """The backend of the platform that the options name.

    Raises:
        GnomonError: 422 `package_missing`; the platform's own errors, such as 503 if AWS or a cluster is unreachable.

    """
    require(options.platform)
    entry = PLATFORMS[options.platform]
    backend: Callable[[ServeOptions, ModelRepository, BuiltImages, Clock], Backend] = getattr(
        importlib.import_module(entry.module), entry.backend
    )
    return backend(options, repository, built, clock)


def require(platform: str) -> None:
    """Refuse a platform whose Python package is not installed.

    Raises:
        GnomonError: 422 `package_missing`.

    """
    entry = PLATFORMS[platform]
    if entry.package and importlib.util.find_spec(entry.package) is None:
        raise GnomonError(
            422, "package_missing", f"{entry.title} needs the Python package {entry.package}.", how_to_install(entry.extra)
        )
