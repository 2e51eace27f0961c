"""The platforms that `gnomon serve` runs functions on: a registry, and what the composition root asks of each.

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
from gnomon_core.interfaces import FunctionStore, ModelRepository, Platform
from gnomon_core.packaging import how_to_install
from gnomon_platforms.images import BuiltImages
from gnomon_server.options import ServeOptions

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from gnomon_autoscaler.registry import Policies
    from gnomon_gateway.functions.manager import Manager
    from gnomon_gateway.logs import LogReader
    from gnomon_gateway.service import FunctionService
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
"""By the value of `--platform`."""


class ServingPlatform(Platform, Protocol):
    """A platform that runs what was built here."""

    def contents(self) -> set[str]:
        """The built handlers whose instances have not ended."""
        ...


class Backend:
    """A store of functions and a platform that runs them, as the composition root uses them.

    `store` and `platform` are set by the constructor of a subclass, and so is `place`, which says whose latencies are learned:
    corrections of one place mean nothing in another. The hooks below suit one process that owns its platform.
    """

    orchestration: ClassVar[str] = "local"
    """What runs the functions, as faas-cli shows it."""
    isolates_users: ClassVar[bool] = True
    """Whether functions run on this machine, so that calls from their user ids are refused."""
    provided: ClassVar[bool] = False
    """Whether replicas are a foreign provider's."""
    shares = False
    """Whether other gateway replicas share the functions."""
    store: FunctionStore
    platform: ServingPlatform
    place: str

    def policies(self, policies: Policies) -> Policies:
        """The scaling policies that functions may name here."""
        return policies

    def functions(self, manager: Manager) -> FunctionService:
        """The functions as the API shows them."""
        return manager

    async def fetch_model(self, reference: str) -> None:
        """Bring a model that a function names to where its instances find it."""

    @property
    def stored_logs(self) -> LogReader | None:
        """Reads what instances write where the platform stores it; None where the gateway holds it."""
        return None

    def epoch(self) -> int:
        """The epoch that batches bear: an instance refuses a gateway with an older one."""
        return 1

    def collectors(self) -> Iterable[Collector]:
        """Further metrics."""
        return ()

    async def begin(self, port: int) -> int:
        """Return when this process may serve, with the port that it is to listen on."""
        return port

    def follow(self, manager: Manager, namespaces: Callable[[], Work]) -> None:
        """Serve what others change in the store; `namespaces` runs when a namespace has changed."""

    async def release_port(self) -> None:
        """Stop listening: the gateway's server is about to listen on this port."""

    async def lead(self) -> None:
        """Prepare to decide and to write: this process has become the leader of several."""

    def leave(self) -> None:
        """This process is about to end."""

    async def end(self) -> None:
        """Close everything. Nothing uses the store or the platform any more."""


def backend_of(options: ServeOptions, repository: ModelRepository, built: BuiltImages, clock: Clock) -> Backend:
    """The backend of the platform that the options name.

    Raises:
        GnomonError: 422 `package_missing`; what the platform refuses, such as 503 where AWS or a cluster cannot be reached.

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
