"""Which platform `gnomon serve` runs functions on, made from its options."""

from __future__ import annotations

import importlib.util
from typing import Protocol

from gnomon_cli.commands.serve_options import ServeOptions
from gnomon_cli.preflight import memory_is_short
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelRepository, Platform
from gnomon_core.packaging import how_to_install
from gnomon_platforms.aws_lambda.resources import LambdaOptions
from gnomon_platforms.images import BuiltImages
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.measuring.session import this_machine
from gnomon_profiler.measuring.store import FOLDER as PROFILES


class ServingPlatform(Platform, Protocol):
    """A platform that runs what was built here."""

    def contents(self) -> set[str]:
        """The built handlers that instances were made from which have not ended."""
        ...


def platform_of(options: ServeOptions, repository: ModelRepository, built: BuiltImages, clock: Clock) -> ServingPlatform:
    """The platform that these options name.

    Raises:
        GnomonError: 422 `package_missing` without boto3, 503 where AWS is not set up.

    """
    if options.aws is not None:
        return _on_lambda(options, options.aws, repository, built, clock)
    return LocalPlatform(
        options.state / "platform",
        repository=repository,
        built=built,
        images=options.images,
        cores=options.cores,
        preload_torch=not memory_is_short(),
        pool=options.pool,
        reserved_cores=options.reserved_cores,
        profiles=options.model_folder / PROFILES,
        machine_id=this_machine().id,
        clock=clock,
    )


def _on_lambda(
    options: ServeOptions, aws: LambdaOptions, repository: ModelRepository, built: BuiltImages, clock: Clock
) -> ServingPlatform:
    require_boto3()
    from gnomon_platforms.aws_lambda.platform import LambdaPlatform  # noqa: PLC0415 - boto3 is an extra of its own

    profiles = options.model_folder / PROFILES
    return LambdaPlatform(aws, repository, built, images=options.images, profiles=profiles, clock=clock)


def require_kubernetes() -> None:
    """Raise a GnomonError unless the Kubernetes client is installed."""
    if importlib.util.find_spec("kubernetes") is None:
        raise GnomonError(422, "package_missing", "Kubernetes needs the Python package kubernetes.", how_to_install("kubernetes"))


def require_boto3() -> None:
    """Raise a GnomonError unless boto3 is installed."""
    if importlib.util.find_spec("boto3") is None:
        raise GnomonError(422, "package_missing", "AWS Lambda needs the Python package boto3.", how_to_install("lambda"))
