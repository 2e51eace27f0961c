"""A model that is far away and answers slowly: who makes a function of it waits, and the event loop does not."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any, cast

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest, ModelRepository
from gnomon_platforms.aws_lambda.platform import LambdaPlatform
from gnomon_platforms.aws_lambda.resources import LambdaOptions
from gnomon_platforms.images import BuiltImages
from gnomon_platforms.testing import Recorder

STANDS_STILL_S = 5.0
"""Only an event loop that waits for the repository does not turn within it."""
SPEC = read_deployment({"service": "fn", "image": "gnomon/body:latest", "annotations": {"gnomon/model": "m@1"}})


class Slow:
    """A repository that answers when the event loop has done something else, and has nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.turned = loop, list[bool]()

    def get(self, reference: str) -> Any:
        turned = Event()
        self._loop.call_soon_threadsafe(turned.set)
        self.turned.append(turned.wait(STANDS_STILL_S))
        raise GnomonError(404, "model_not_found", f"There is no {reference}.")


class NothingBuilt:
    def resolve(self, image: str) -> None:
        del image


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", "testing"), ("SECRET_ACCESS_KEY", "testing"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.usefixtures("region")
async def test_the_event_loop_goes_on_while_a_slots_model_is_read() -> None:
    repository = Slow(asyncio.get_running_loop())
    options = LambdaOptions("arn:aws:iam::123456789012:role/gnomon")
    platform = LambdaPlatform(options, cast("ModelRepository", repository), cast("BuiltImages", NothingBuilt()))
    platform._listener = Recorder()
    for order in (platform.create(InstanceRequest(SPEC, 1, 1, None, {})), platform.prepare(SPEC)):
        with pytest.raises(GnomonError, match=r"no m@1"):
            await order
    await platform.stop()
    assert repository.turned == [True, True]
