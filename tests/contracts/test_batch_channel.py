"""The contract of every batch channel. A new implementation inherits `BatchChannelContract`."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, InstanceRequest
from gnomon_core.wire import NOT_TAKEN, Frame, Kind
from gnomon_platforms.aws_lambda.platform import LambdaPlatform
from gnomon_platforms.aws_lambda.testing.account import Account, BuiltFolder
from gnomon_platforms.channel import Channel
from gnomon_platforms.common import open_session
from gnomon_platforms.knative.batching.channel import PodChannel
from gnomon_platforms.kubernetes.channel import HttpChannel
from gnomon_platforms.local.channel import UnixChannel, channel_pair
from gnomon_platforms.provider.channel import ChannelContext, ProviderChannel, Route
from tests.integration.runtime.conftest import GUNICORN, TOKEN, free_port
from tests.platform_testing import NoModels, Recorder, answers, request_frame, send
from tests.waiting import until

Instance = tuple[subprocess.Popen[bytes], socket.socket]
INSTANCE = Path(__file__).with_name("echo_instance.py")


class BatchChannelContract:
    """Needs the fixture `channel`, to an instance that runs echo_instance.py's application."""

    async def test_a_result_has_one_member_per_member_in_the_same_order(self, channel: BatchChannel) -> None:
        bodies = [b"%d" % number for number in range(700)]
        assert answers(await send(channel, request_frame(*bodies))) == [(200, body) for body in bodies]

    async def test_a_batch_larger_than_any_socket_buffer_comes_back_whole(self, channel: BatchChannel) -> None:
        bodies = [bytes([number]) * 3_000_001 for number in range(8)]
        assert answers(await send(channel, request_frame(*bodies))) == [(200, body) for body in bodies]

    async def test_batch_after_batch_each_gets_its_own_result(self, channel: BatchChannel) -> None:
        for number in range(200):
            body = os.urandom(number)
            assert answers(await send(channel, request_frame(body, batch_id=number))) == [(200, body)]

    async def test_done_may_send_the_next_batch(self, channel: BatchChannel) -> None:
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seen: list[bytes] = []

        def done(frame: Frame | None) -> None:
            seen.append(answers(frame)[0][1])
            if len(seen) == 50:
                finished.set_result(None)
            else:
                channel.run(request_frame(b"%d" % len(seen), batch_id=len(seen)), done)

        channel.run(request_frame(b"0"), done)
        await finished
        assert seen == [b"%d" % number for number in range(50)]

    async def test_a_batch_from_an_old_epoch_is_refused_member_by_member(self, channel: BatchChannel) -> None:
        await send(channel, request_frame(b"new", epoch=7))
        old = answers(await send(channel, request_frame(b"a", b"b", epoch=6)))
        assert [status for status, _ in old] == [409, 409]
        assert b"stale_epoch" in old[0][1]
        assert answers(await send(channel, request_frame(b"same", epoch=7))) == [(200, b"same")]

    async def test_an_instance_that_dies_gives_its_batch_back_as_none(self, channel: BatchChannel) -> None:
        assert await send(channel, request_frame(b"", meta=b"POST\n/crash\n\n")) is None
        assert not channel.unread

    async def test_a_batch_for_a_dead_instance_is_none_as_well(self, channel: BatchChannel) -> None:
        await send(channel, request_frame(b"", meta=b"POST\n/crash\n\n"))
        assert await send(channel, request_frame(b"late", batch_id=2)) is None
        assert set(channel.unread) == {2}
        assert not await channel.probe(1.0)

    async def test_an_instance_that_sends_nonsense_is_lost(self, channel: BatchChannel) -> None:
        assert await send(channel, request_frame(b"", meta=b"POST\n/garbage\n\n")) is None

    async def test_a_cancelled_batch_is_still_done(self, channel: BatchChannel) -> None:
        answer = send(channel, request_frame(b"x", meta=b"POST\n/slow\n\n"))
        channel.cancel(1)
        channel.cancel(99)
        # Whether the instance saw the word in time is chance; it is free again in either case.
        [(status, body)] = answers(await answer)
        assert status == 499 or (status, body) == (200, b"x")
        assert answers(await send(channel, request_frame(b"y", batch_id=2))) == [(200, b"y")]

    async def test_a_stream_gives_its_parts_and_then_an_empty_result(self, channel: BatchChannel) -> None:
        parts: list[Frame] = []
        result = await send(channel, request_frame(b"short", meta=b"GET\n/stream\n\n"), parts.append)
        kinds = [part.kind for part in parts]
        assert (kinds[0], set(kinds[1:-1]), kinds[-1]) == (Kind.STREAM_START, {Kind.STREAM_DATA}, Kind.STREAM_END)
        assert b"".join(bytes(part.members[0].body) for part in parts[1:-1]) == b"0\n1\n2\n"
        assert not result.members

    async def test_a_stream_that_nobody_asked_for_comes_as_one_result(self, channel: BatchChannel) -> None:
        assert answers(await send(channel, request_frame(b"short", meta=b"GET\n/stream\n\n"))) == [(200, b"0\n1\n2\n")]

    async def test_a_stream_that_breaks_off_has_no_result(self, channel: BatchChannel) -> None:
        parts: list[Frame] = []
        assert await send(channel, request_frame(b"broken", meta=b"GET\n/stream\n\n"), parts.append) is None
        assert [part.kind for part in parts[:2]] == [Kind.STREAM_START, Kind.STREAM_DATA]

    async def test_unrequested_end_of_a_channel_carries_its_failure(self, channel: BatchChannel) -> None:
        assert answers(await send(channel, request_frame(b"broken", meta=b"GET\n/stream\n\n"))) == [(500, b"half way")]
        assert answers(await send(channel, request_frame(b"next", batch_id=2))) == [(200, b"next")]

    async def test_a_cancelled_stream_ends_early(self, channel: BatchChannel) -> None:
        parts: list[Frame] = []

        def take(part: Frame) -> None:
            parts.append(part)
            if len(parts) == 5:
                channel.cancel(1)

        assert await send(channel, request_frame(b"", meta=b"GET\n/stream\n\n"), take) is not None
        assert len(parts) < 500
        assert answers(await send(channel, request_frame(b"next", batch_id=2))) == [(200, b"next")]

    async def test_a_draining_channel_answers_what_is_in_flight_and_takes_nothing_more(self, channel: Channel) -> None:
        answer = send(channel, request_frame(b"x", meta=b"POST\n/slow\n\n"))
        channel.drain("its instance is to end")
        assert await send(channel, request_frame(b"y", batch_id=2)) is NOT_TAKEN
        assert answers(await answer) == [(200, b"x")]
        assert channel.closed

    async def test_a_batch_in_flight_has_exactly_one_end_when_the_channel_is_closed(self, channel: Channel) -> None:
        ends: list[Frame | None] = []
        channel.run(request_frame(b"x", meta=b"POST\n/slow\n\n"), ends.append)
        await asyncio.sleep(0.05)
        channel.close()
        channel.close()
        await until(lambda: ends, "the batch has no end")
        await asyncio.sleep(0.05)
        assert ends == [None]

    async def test_a_healthy_instance_answers_a_probe(self, channel: BatchChannel) -> None:
        assert await channel.probe(5.0)


class ProcessChannelContract(BatchChannelContract):
    """The further contract of channels whose instance is one process. Needs the fixture `pid`, that process."""

    async def test_a_batch_that_its_instance_never_read_is_known_as_such(self, channel: BatchChannel, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        answer = send(channel, request_frame(b"x" * 100_000))
        os.kill(pid, signal.SIGKILL)
        assert await answer is None
        assert channel.unread

    async def test_batch_counts_as_read_once_more_than_its_header_was_sent(self, channel: BatchChannel, pid: int) -> None:
        answer = send(channel, request_frame(b"", meta=b"POST\n/slow\n\n"))
        channel.cancel(1)
        os.kill(pid, signal.SIGKILL)
        assert await answer is None
        assert not channel.unread

    async def test_a_frozen_instance_does_not(self, channel: BatchChannel, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        assert not await channel.probe(0.2)
        os.kill(pid, signal.SIGCONT)
        assert await channel.probe(5.0)


class TestUnixChannel(ProcessChannelContract):
    concurrency = 1

    @pytest.fixture
    def process(self) -> Iterator[Instance]:
        ours, theirs = channel_pair()
        command = [sys.executable, str(INSTANCE), str(theirs.fileno()), str(self.concurrency)]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE)
        theirs.close()
        yield process, ours
        process.kill()
        process.wait()
        process.stdout.close()

    @pytest.fixture
    def pid(self, process: Instance) -> int:
        return process[0].pid

    @pytest.fixture
    async def channel(self, process: Instance) -> AsyncIterator[UnixChannel]:
        hello: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        lost: list[str] = []
        channel = UnixChannel(process[1], hello.set_result, lost.append)
        assert (await asyncio.wait_for(hello, 30))["kind"] == "echo"
        yield channel
        channel.close()
        assert len(lost) == 1

    async def test_a_cancelled_stream_closes_the_generator(self, channel: UnixChannel, process: Instance) -> None:
        parts: list[Frame] = []

        def take(part: Frame) -> None:
            parts.append(part)
            channel.cancel(1)

        await send(channel, request_frame(b"endless", meta=b"GET\n/stream\n\n"), take)
        output = process[0].stdout
        assert await asyncio.to_thread(output.readline) == b"closed\n"

    async def test_a_body_that_the_function_keeps_is_not_overwritten_by_the_next_batch(self, channel: UnixChannel) -> None:
        await send(channel, request_frame(b"first visitor", meta=b"POST\n/keep\n\n"))
        await send(channel, request_frame(b"second", batch_id=2))
        assert answers(await send(channel, request_frame(b"x", batch_id=3, meta=b"GET\n/kept\n\n"))) == [(200, b"first visitor")]

    async def test_a_resize_moves_the_instance_to_other_cpus(self, channel: UnixChannel) -> None:
        cpu = max(os.sched_getaffinity(0))
        channel.resize(3, (cpu,))
        answer = await send(channel, request_frame(b"", meta=b"GET\n/cpus\n\n"))
        assert answers(answer) == [(200, f"3 [{cpu}]".encode())]

    async def test_stop_lets_the_instance_finish_and_exit(self, channel: UnixChannel, process: Instance) -> None:
        answer = send(channel, request_frame(b"last", meta=b"POST\n/slow\n\n"))
        channel.stop()
        assert answers(await answer) == [(200, b"last")]
        assert await asyncio.to_thread(process[0].wait, 10) == 0

    async def test_a_second_batch_while_one_is_in_flight_is_a_mistake_of_the_caller(self, channel: BatchChannel) -> None:
        answers = [
            send(channel, request_frame(b"1", batch_id=number, meta=b"POST\n/slow\n\n")) for number in range(self.concurrency)
        ]
        with pytest.raises(RuntimeError, match="in flight"):
            channel.run(request_frame(b"2", batch_id=99), lambda _: None)
        await asyncio.gather(*answers)


class TestConcurrentUnixChannel(TestUnixChannel):
    """To an instance that executes four batches at once: all that holds for one, and that they are executed together."""

    concurrency = 4

    async def test_as_many_batches_as_the_instance_names_are_executed_together(self, channel: UnixChannel) -> None:
        assert channel.concurrency == 4
        frames = [request_frame(b"%d" % number, batch_id=number, meta=b"POST\n/together\n\n") for number in range(4)]
        results = await asyncio.wait_for(asyncio.gather(*[send(channel, frame) for frame in frames]), 30)
        assert [answers(result) for result in results] == [[(200, b"%d" % number)] for number in range(4)]

    async def test_a_batch_overtakes_one_that_takes_longer(self, channel: UnixChannel) -> None:
        slow = [send(channel, request_frame(b"slow", batch_id=number, meta=b"POST\n/together\n\n")) for number in range(3)]
        for number in range(10, 60):
            assert answers(await send(channel, request_frame(b"quick", batch_id=number))) == [(200, b"quick")]
        assert not any(answer.done() for answer in slow)
        slow.append(send(channel, request_frame(b"slow", batch_id=99, meta=b"POST\n/together\n\n")))
        assert all(answers(result) == [(200, b"slow")] for result in await asyncio.gather(*slow))

    async def test_a_probe_is_answered_while_every_place_is_taken(self, channel: UnixChannel) -> None:
        busy = [send(channel, request_frame(b"", batch_id=number, meta=b"POST\n/slow\n\n")) for number in range(4)]
        assert await channel.probe(30.0)
        await asyncio.gather(*busy)

    async def test_all_that_is_in_flight_is_given_back_when_the_instance_dies(self, channel: UnixChannel, pid: int) -> None:
        lost = [send(channel, request_frame(b"", batch_id=number, meta=b"POST\n/together\n\n")) for number in range(3)]
        assert await channel.probe(30.0)  # they have been read
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.gather(*lost) == [None, None, None]
        assert not channel.unread

    async def test_streams_beside_each_other_keep_apart(self, channel: UnixChannel) -> None:
        parts: dict[int, list[Frame]] = {1: [], 2: []}
        streams = [
            send(channel, request_frame(b"short", batch_id=number, meta=b"GET\n/stream\n\n"), parts[number].append)
            for number in parts
        ]
        await asyncio.gather(*streams)
        for number, frames in parts.items():
            assert {frame.batch_id for frame in frames} == {number}
            assert b"".join(bytes(frame.members[0].body) for frame in frames[1:-1]) == b"0\n1\n2\n"


@dataclass
class Image:
    """The application as an image runs it: where it listens, and what it writes."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path


class ImageChannelContract(BatchChannelContract):
    """Over HTTP to an image."""

    @pytest.fixture
    def image(self, tmp_path: Path) -> Iterator[Image]:
        folder, port, log = tmp_path / "function", free_port(), tmp_path / "log"
        folder.mkdir()
        (folder / "handler.py").write_bytes(INSTANCE.read_bytes())
        environment = {"PATH": os.environ["PATH"], "GNOMON_PORT": str(port), "GNOMON_BATCH_TOKEN": TOKEN}
        with log.open("wb") as file:
            command = [*GUNICORN, f"127.0.0.1:{port}"]
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=file, stderr=subprocess.STDOUT)
        yield Image(f"http://127.0.0.1:{port}", process, log)
        process.terminate()
        process.wait()

    @pytest.fixture
    async def session(self, image: Image) -> AsyncIterator[aiohttp.ClientSession]:
        async def ready() -> bool:
            assert image.process.poll() is None, image.log.read_text()
            try:
                async with session.get(image.address + "/_/ready") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        async with open_session() as session:
            while not await ready():  # noqa: ASYNC110 - no event says it: it is asked over the network
                await asyncio.sleep(0.02)
            yield session

    async def test_a_cancelled_stream_closes_the_generator(self, channel: BatchChannel, image: Image) -> None:
        def take(part: Frame) -> None:
            if part.kind is Kind.STREAM_DATA:
                channel.cancel(1)

        await send(channel, request_frame(b"endless", meta=b"GET\n/stream\n\n"), take)
        await until(lambda: "closed" in image.log.read_text())
        assert answers(await send(channel, request_frame(b"next", batch_id=2))) == [(200, b"next")]


class TestHttpChannel(ImageChannelContract):
    @pytest.fixture
    async def channel(self, image: Image, session: aiohttp.ClientSession) -> AsyncIterator[HttpChannel]:
        lost: list[str] = []
        channel = HttpChannel(session, image.address, TOKEN, 30.0, lost.append)
        yield channel
        channel.close()
        assert len(lost) <= 1

    async def test_a_stream_that_breaks_off_is_no_fault_of_its_pod(self, channel: HttpChannel) -> None:
        assert await send(channel, request_frame(b"broken", meta=b"GET\n/stream\n\n"), lambda _: None) is None
        assert await channel.probe(5.0)
        assert answers(await send(channel, request_frame(b"next", batch_id=2))) == [(200, b"next")]

    async def test_a_stream_that_nobody_asked_for_ends_when_it_is_cancelled(self, channel: HttpChannel, image: Image) -> None:
        answer = send(channel, request_frame(b"endless", meta=b"GET\n/stream\n\n"))
        channel.cancel(1)
        assert answers(await answer)[0][0] == 200
        await until(lambda: "closed" in image.log.read_text())


class TestProviderChannel(ImageChannelContract):
    """To a function that takes batches, as if its provider were not in between."""

    @pytest.fixture
    async def channel(self, image: Image, session: aiohttp.ClientSession) -> AsyncIterator[ProviderChannel]:
        async def awake() -> None:
            raise AssertionError("it is there")

        lost: list[str] = []
        context = ChannelContext(reachable=lambda: True, on_unreachable=lost.append, timeout_s=30.0)
        channel = ProviderChannel(Route(session, image.address, awake, random.Random(1)), context, TOKEN, lost.append)
        yield channel
        channel.close()
        assert len(lost) <= 1


class TestPodChannel(ImageChannelContract):
    """To a Revision's pod, as if its queue-proxy were not in between."""

    @pytest.fixture
    async def channel(self, image: Image, session: aiohttp.ClientSession) -> AsyncIterator[PodChannel]:
        async def awake() -> None:
            raise AssertionError("it is there")

        lost: list[str] = []
        context = ChannelContext(reachable=lambda: True, on_unreachable=lambda _: None, timeout_s=30.0, peer="pod")
        route = Route(session, image.address, awake, random.Random(1))
        channel = PodChannel(route, context, TOKEN, lost.append, lambda _: None)
        yield channel
        channel.close()
        assert len(lost) <= 1


class TestLambdaChannel(BatchChannelContract):
    @pytest.fixture
    async def channel(self, aws: Account, tmp_path: Path) -> AsyncIterator[BatchChannel]:
        folder = tmp_path / "handler"
        folder.mkdir()
        (folder / "handler.py").write_bytes(INSTANCE.read_bytes())
        platform, listener = LambdaPlatform(aws.options(), NoModels(), BuiltFolder(folder)), Recorder()
        await platform.start(listener)
        yield await listener.channel((await platform.create(InstanceRequest(echo(), 1, 1, None, {}))).id)
        await platform.stop()
        assert aws.left() == [], "a batch that was handed over has been left behind"

    async def test_a_batch_that_lambda_never_began_is_known_as_such(self, channel: BatchChannel, aws: Account) -> None:
        aws.client("lambda").delete_function(FunctionName="gnomon-echo-openfaas-fn-zip")
        aws.service.forget("gnomon-echo-openfaas-fn-zip")
        assert await send(channel, request_frame(b"x")) is None
        assert channel.unread

    async def test_batch_of_a_killed_sandbox_counts_as_possibly_executed(self, channel: BatchChannel, aws: Account) -> None:
        answer = send(channel, request_frame(b"", meta=b"POST\n/slow\n\n"))
        await asyncio.to_thread(aws.service.wait_for_running)
        channel.cancel(1)
        aws.service.sandboxes[-1].process.kill()
        assert await answer is None
        assert not channel.unread

    async def test_a_probe_runs_nothing(self, channel: BatchChannel, aws: Account) -> None:
        before = len(aws.service.calls)
        assert [await channel.probe(5.0) for _ in range(3)] == [True] * 3
        assert [kind for _, kind in aws.service.calls[before:]] == ["DryRun"]

    async def test_a_function_that_is_gone_answers_none(self, channel: BatchChannel, aws: Account) -> None:
        aws.client("lambda").delete_function(FunctionName="gnomon-echo-openfaas-fn-zip")
        aws.service.forget("gnomon-echo-openfaas-fn-zip")
        assert not await channel.probe(5.0)


def echo() -> FunctionSpec:
    return read_deployment({"service": "echo", "image": "built/echo:1"})
