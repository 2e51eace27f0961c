"""An account of one's own, and functions on it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, InstanceRequest, ModelRepository
from gnomon_platforms.aws_lambda.platform import LambdaPlatform
from gnomon_platforms.aws_lambda.resources import LambdaOptions
from gnomon_platforms.aws_lambda.testing.account import Account
from gnomon_platforms.images import BuiltImages
from tests.platform_testing import NoModels, NothingBuilt, Recorder


class OnLambda:
    """A platform, what it has told, and the account below it."""

    def __init__(self, aws: Account, platform: LambdaPlatform) -> None:
        self.aws = aws
        self.platform = platform
        self.events = Recorder()

    async def begin(self, spec: FunctionSpec, *, cores: int = 1, version: int = 1) -> tuple[Instance, BatchChannel]:
        """An instance that is ready."""
        instance = await self.platform.create(InstanceRequest(spec, version, cores, None, {}))
        return instance, await self.events.channel(instance.id)


Start = Callable[..., Awaitable[OnLambda]]


@pytest.fixture
async def on_lambda(aws: Account) -> AsyncIterator[Start]:
    """Starts platforms on the account; they are stopped with the test."""
    async with AsyncExitStack() as stack:

        async def start(
            options: LambdaOptions | None = None,
            *,
            repository: ModelRepository | None = None,
            built: BuiltImages | None = None,
        ) -> OnLambda:
            platform = LambdaPlatform(
                options or aws.options(), repository or NoModels(), built or NothingBuilt(), rng=random.Random(1)
            )
            made = OnLambda(aws, platform)
            await platform.start(made.events)
            stack.push_async_callback(platform.stop)
            return made

        yield start


def echo(process: str = "cat", **fields: object) -> FunctionSpec:
    return read_deployment({"service": "echo", "image": "functions/alpine", "envProcess": process, **fields})


@pytest.fixture
def echo_spec() -> Callable[..., FunctionSpec]:
    return echo
