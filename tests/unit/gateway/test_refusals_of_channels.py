"""Errors of the way to an instance are the platform's own, and a stored call is made again; what an instance says is its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.wire import Frame, decode, encode, error_result
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Invocation
from gnomon_gateway.asynchronous.queue import DEFAULT_RULE
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime, no_such_function
from gnomon_gateway.inside_call import Invoker
from gnomon_gateway.scheduling.basic import Immediate

MODEL = ModelSignature("m", "1", (TensorSpec("x", "FP32", (2,)),), (TensorSpec("y", "FP32", (2,)),))
TENSORS = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()
JSON = (("content-type", "application/json"),)
THROTTLED = GnomonError(503, "throttled", "Not begun in its time.", "Ask for more.", retry_after_s=5.0)


class Way:
    """A channel whose batches all end with this error: on the way, or at the instance that they came to."""

    unread = False

    def __init__(self, error: GnomonError, *, at_the_instance: bool) -> None:
        self._error, self._at_the_instance = error, at_the_instance

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: Callable[[Frame], None] | None = None) -> None:
        del stream
        result = error_result(frame, self._error)
        done(decode(encode(result)) if self._at_the_instance else result)

    def cancel(self, batch_id: int) -> None: ...

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        return True


class Directory:
    """One function."""

    def __init__(self, runtime: FunctionRuntime) -> None:
        self._runtime = runtime

    def lookup(self, name: str) -> FunctionRuntime | None:
        return self._runtime if name == self._runtime.name else None

    def refusal(self, name: str) -> GnomonError:
        return no_such_function(name)


async def called(error: GnomonError, *, at_the_instance: bool, tensors: bool) -> FunctionAnswer:
    """What a stored call is answered by such a way."""
    settings, signature = Settings(model="m" if tensors else None), MODEL if tensors else None
    runtime = FunctionRuntime(FunctionKey("fn"), settings, Immediate(), LearnedLatency(), signature=signature)
    body = Instance("i1", "fn", 1, "node", 1, 1, InstanceState.READY, 0.0)
    runtime.instance_ready(body, Way(error, at_the_instance=at_the_instance))
    content, headers = (TENSORS, JSON) if tensors else (b"x", ())
    return await Invoker(Directory(runtime))(Invocation(runtime.key, "POST", "/", "", headers, content))


@pytest.mark.parametrize("tensors", [False, True], ids=["events", "tensors"])
async def test_what_failed_on_the_way_is_made_again_like_any_refusal_of_ours(*, tensors: bool) -> None:
    answer = await called(THROTTLED, at_the_instance=False, tensors=tensors)
    assert (answer.status, answer.header("X-OpenFaaS-Internal"), answer.header("Retry-After")) == (503, "gnomon", "5")
    assert "Not begun in its time." in answer.body.decode()
    assert DEFAULT_RULE.wait_s(answer, 1, Random(1)) == 5.0
    assert DEFAULT_RULE.wait_s(answer, DEFAULT_RULE.attempts + 1, Random(1)) is None, "as often as ours, and not more"


@pytest.mark.parametrize("tensors", [False, True], ids=["events", "tensors"])
async def test_what_an_instance_says_is_its_own_whatever_it_looks_like(*, tensors: bool) -> None:
    answer = await called(THROTTLED, at_the_instance=True, tensors=tensors)
    assert (answer.status, answer.is_ours) == (503, False)
    assert DEFAULT_RULE.wait_s(answer, 1, Random(1)) is None
