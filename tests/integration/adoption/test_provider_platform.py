"""The platform contract in front of a fake provider, and the operations that only this platform has."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import StoredFunction, StoredNamespace
from gnomon_platforms.provider.api import ProviderApi, ProviderOptions
from gnomon_platforms.provider.catalog import Catalog, ProviderStore
from gnomon_platforms.provider.platform import ProviderPlatform
from tests.contracts.test_platform import PlatformContract, Started, World, deployment, instance_of
from tests.integration.adoption.played_provider import PlayedProvider
from tests.platform_testing import Recorder, answers, request_frame, send
from tests.waiting import until

ECHO = "echo.openfaas-fn"


@pytest.fixture
async def provider() -> AsyncIterator[PlayedProvider]:
    async with PlayedProvider() as played:
        for name in ("echo", "one", "two"):
            played.add(name, replicas=2)
        yield played


@pytest.fixture
async def catalog(provider: PlayedProvider) -> AsyncIterator[Catalog]:
    options = ProviderOptions(provider.url, poll_s=0.05)
    api = ProviderApi(options)
    known = Catalog(api, options)
    await asyncio.to_thread(known.start)
    yield known
    await asyncio.to_thread(known.close)
    api.close()


@pytest.fixture
async def started(provider: PlayedProvider, catalog: Catalog) -> AsyncIterator[Started]:
    options = ProviderOptions(provider.url, start_timeout_s=20.0)
    platform, listener = ProviderPlatform(ProviderApi(options), catalog, options), Recorder()
    await platform.start(listener)
    yield platform, listener
    await platform.stop()


class TestProviderPlatform(PlatformContract):
    async def test_an_instance_without_room_is_refused_or_waits_with_the_reason_and_takes_nothing(self, world: World) -> None:
        """Two replicas that take four requests each, by default: the ninth slot is one too many."""
        platform = world.platform
        made = [await platform.create(instance_of(deployment())) for _ in range(8)]
        before = platform.nodes()
        assert [node.free_cores for node in before] == [0, 8, 8]
        for wrong in (
            instance_of(deployment()),
            instance_of(deployment("one"), node="elsewhere"),
            instance_of(deployment("nobody")),
        ):
            with pytest.raises(GnomonError) as refused:
                await platform.create(wrong)
            assert (refused.value.status, refused.value.code) == (503, "no_capacity")
        assert platform.nodes() == before
        assert len(platform.instances(ECHO)) == len(made)

    async def test_a_function_that_can_never_run_is_refused_with_what_is_allowed(self, started: Started) -> None:
        """Which images there are is the provider's to say."""
        platform, _ = started
        with pytest.raises(GnomonError) as refused:
            platform.check(deployment(process=" "))
        assert refused.value.status == 400
        platform.check(deployment())
        await platform.prepare(deployment())
        assert platform.signature(deployment()) is None

    @pytest.mark.skip(reason="what functions write is kept by the provider, and read there")
    async def test_output_of_a_function_is_logged_line_by_line(self, started: Started) -> None: ...

    @pytest.mark.skip(reason="what replicas use is measured by the provider")
    async def test_usage_counts_instances_that_have_ended(self, started: Started) -> None: ...

    async def test_places_follow_the_replicas_that_are_available(
        self, started: Started, provider: PlayedProvider, catalog: Catalog
    ) -> None:
        platform, _ = started
        provider.functions["echo"].replicas.pop()
        await until(lambda: catalog.places(FunctionKey("echo")) == 4)
        assert platform.nodes()[0].cores == 4
        provider.functions["echo"].document["annotations"] = {"gnomon/max-inflight": "7"}
        await until(lambda: platform.nodes()[0].cores == 7)
        provider.functions["echo"].document = {
            **provider.functions["echo"].document,
            "annotations": {},
            "envVars": {"max_inflight": "3"},
        }
        await until(lambda: platform.nodes()[0].cores == 3)
        del provider.functions["echo"]
        await until(lambda: [node.name for node in platform.nodes()] == ["one.openfaas-fn", "two.openfaas-fn"])

    async def test_refused_credentials_stop_no_function(
        self, started: Started, provider: PlayedProvider, catalog: Catalog
    ) -> None:
        """Credentials are needed to change functions, not to call them: what serves goes on, and more slots open beside it."""
        platform, listener = started
        serving = await listener.channel((await platform.create(instance_of(deployment()))).id)
        provider.user, provider.password = "another", "password"
        await until(lambda: catalog.trouble is not None)
        assert await serving.probe(1.0)
        channel = await listener.channel((await platform.create(instance_of(deployment()))).id)
        assert answers(await send(channel, request_frame(b"still"))) == [(200, b"still")]

    async def test_a_function_that_cannot_be_woken_is_answered_why_and_its_slot_goes_on(
        self, started: Started, provider: PlayedProvider, catalog: Catalog
    ) -> None:
        platform, listener = started
        channel = await listener.channel((await platform.create(instance_of(deployment()))).id)
        provider.functions["echo"].replicas.clear()
        provider.functions["echo"].wanted = 0
        await until(lambda: not catalog.places(FunctionKey("echo")))
        provider.user, provider.password = "another", "password"
        answered = answers(await send(channel, request_frame(b"a", b"b")))
        assert [(code, json.loads(body)["error"]["code"]) for code, body in answered] == [(502, "provider_credentials")] * 2
        provider.user = provider.password = ""
        assert answers(await send(channel, request_frame(b"c", batch_id=2))) == [(200, b"c")]

    async def test_a_request_that_cannot_be_sent_ends_its_slot_and_is_not_waited_for(self, started: Started) -> None:
        platform, listener = started
        slot = await platform.create(instance_of(deployment()))
        channel = await listener.channel(slot.id)
        unfit = request_frame(b"x", meta=b"POST\n/\n\nX-Two: lines\rin one")
        assert await send(channel, unfit) is None
        assert "ValueError" in await listener.reason(slot.id)

    async def test_a_batch_goes_request_by_request_to_a_function_that_takes_none(self, started: Started) -> None:
        platform, listener = started
        channel = await listener.channel((await platform.create(instance_of(deployment()))).id)
        bodies = [b"%d" % number for number in range(20)]
        assert answers(await send(channel, request_frame(*bodies))) == [(200, body) for body in bodies]

    async def test_an_older_epoch_is_refused(self, started: Started) -> None:
        platform, listener = started
        channel = await listener.channel((await platform.create(instance_of(deployment()))).id)
        await send(channel, request_frame(b"new", epoch=7))
        assert [code for code, _ in answers(await send(channel, request_frame(b"a", b"b", epoch=6)))] == [409, 409]

    async def test_a_slot_of_a_provider_that_is_away_is_lost_with_its_batch_unread_and_the_next_one_waits(
        self, started: Started, provider: PlayedProvider
    ) -> None:
        platform, listener = started
        first = await platform.create(instance_of(deployment()))
        channel = await listener.channel(first.id)
        await provider.down()
        assert await send(channel, request_frame(b"x")) is None
        assert channel.unread
        assert "cannot be reached" in await listener.reason(first.id)
        second = await platform.create(instance_of(deployment()))
        await asyncio.sleep(0.2)
        assert platform.instances(ECHO)[0].state is InstanceState.STARTING
        await provider.up()
        assert answers(await send(await listener.channel(second.id), request_frame(b"x"))) == [(200, b"x")]

    async def test_a_cancelled_batch_is_done_and_its_slot_goes_on(self, started: Started, provider: PlayedProvider) -> None:
        platform, listener = started
        channel = await listener.channel((await platform.create(instance_of(deployment()))).id)
        provider.functions["echo"].delay_s = 30.0
        answer = send(channel, request_frame(b"x", b"y"))
        await until(lambda: len(provider.seen) == 1)
        channel.cancel(1)
        channel.cancel(99)
        assert [code for code, _ in answers(await answer)] == [499, 499]
        provider.functions["echo"].delay_s = 0.0
        assert answers(await send(channel, request_frame(b"z", batch_id=2))) == [(200, b"z")]

    async def test_a_function_that_never_gets_a_replica_is_told(self, provider: PlayedProvider, catalog: Catalog) -> None:
        provider.functions["echo"].replicas.clear()
        provider.functions["echo"].wanted = 0
        provider.start_s = 60.0
        await until(lambda: not catalog.places(FunctionKey("echo")))
        options = ProviderOptions(provider.url, start_timeout_s=0.5)
        platform, listener = ProviderPlatform(ProviderApi(options), catalog, options), Recorder()
        await platform.start(listener)
        slots = [await platform.create(instance_of(deployment())) for _ in range(1)]
        assert await listener.reason(slots[0].id) == "the provider had no replica within 0.5 s"
        assert [call["replicas"] for call in provider.changes("POST")] == [1]
        await platform.stop()

    async def test_unreadable_setting_of_a_foreign_function_is_logged_once(
        self, provider: PlayedProvider, catalog: Catalog, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "gnomon.provider"):
            provider.add("odd", annotations={"gnomon/max-batch": "many"}, labels={"com.openfaas.scale.min": "x", "team": "a"})
            await until(lambda: catalog.of(FunctionKey("odd")) is not None)
            looks = catalog.looks
            await until(lambda: catalog.looks > looks + 3)
        odd = catalog.of(FunctionKey("odd"))
        assert odd is not None
        assert (odd.spec.settings.max_batch, odd.spec.labels["team"], odd.created_at) == (1, "a", 1767323045.0)
        assert odd.spec.raw["annotations"] == {"gnomon/max-batch": "many"}, "what was deployed is told as it was"
        assert len([record for record in caplog.records if "odd.openfaas-fn" in record.getMessage()]) == 1


async def test_functions_of_a_provider_without_namespaces_are_called_by_their_names_alone() -> None:
    async with PlayedProvider() as played:
        played.has_namespaces = False
        played.add("echo", replicas=1)
        options = ProviderOptions(played.url, poll_s=0.05, start_timeout_s=20.0)
        catalog = Catalog(ProviderApi(options), options)
        await asyncio.to_thread(catalog.start)
        platform, listener = ProviderPlatform(ProviderApi(options), catalog, options), Recorder()
        await platform.start(listener)
        try:
            await platform.create(instance_of(deployment()))
            await until(lambda: bool(listener.channels), "an instance is ready")
            [channel] = listener.channels.values()
            assert answers(await send(channel, request_frame(b"hello"))) == [(200, b"hello")]
        finally:
            await platform.stop()
            await asyncio.to_thread(catalog.close)


# What is kept at a provider: functions, secrets and namespaces, as `FunctionStore` promises it where a provider can.


ECHO_KEY = FunctionKey("echo")


@pytest.fixture
async def empty_provider() -> AsyncIterator[PlayedProvider]:
    async with PlayedProvider() as played:
        yield played


@pytest.fixture
async def store(empty_provider: PlayedProvider) -> AsyncIterator[ProviderStore]:
    options = ProviderOptions(empty_provider.url, poll_s=0.05)
    api = ProviderApi(options)
    catalog = Catalog(api, options)
    await asyncio.to_thread(catalog.start)
    known = ProviderStore(api, catalog)
    yield known
    await asyncio.to_thread(known.close)


def stored(image: str = "functions/alpine:latest", **fields: Any) -> StoredFunction:
    return StoredFunction(read_deployment({"service": "echo", "image": image, "envProcess": "cat", **fields}), 7, 0.0)


async def test_stored_function_is_readable_when_the_call_returns(empty_provider: PlayedProvider, store: ProviderStore) -> None:
    await asyncio.to_thread(store.put_function, stored(annotations={"note": "é\n☀"}))
    [found] = store.functions()
    assert (found.spec.key, found.spec.annotations, found.spec.env_process) == (ECHO_KEY, {"note": "é\n☀"}, "cat")
    assert [method for method, _, _ in empty_provider.calls] == ["PUT", "POST"], "as faas-cli does it"
    await asyncio.to_thread(store.put_function, stored("functions/alpine:new"))
    assert [function.spec.image for function in store.functions()] == ["functions/alpine:new"]
    assert await asyncio.to_thread(store.delete_function, ECHO_KEY) is True
    assert await asyncio.to_thread(store.delete_function, ECHO_KEY) is False
    assert store.functions() == []


async def test_functions_read_from_the_provider_are_never_written_back(
    empty_provider: PlayedProvider, store: ProviderStore
) -> None:
    """Version two is deployed there while we follow version one."""
    empty_provider.add("echo", image="functions/alpine:one")
    await until(store.functions)
    [function] = store.functions()
    empty_provider.functions["echo"].document = {**empty_provider.functions["echo"].document, "image": "functions/alpine:two"}
    await until(lambda: store.functions()[0].spec.image == "functions/alpine:two")
    await asyncio.to_thread(store.put_function, function)
    assert empty_provider.calls == []
    assert store.functions()[0].spec.image == "functions/alpine:two"


async def test_watchers_hear_of_what_others_do_there_until_they_stop(
    empty_provider: PlayedProvider, store: ProviderStore
) -> None:
    changes: list[FunctionKey] = []
    stop = store.watch(changes.append)
    empty_provider.add("echo")
    await until(lambda: changes == [ECHO_KEY])
    empty_provider.functions["echo"].wanted = 5
    await asyncio.to_thread(store.put_secret, FunctionKey("token"), b"v")
    empty_provider.functions["echo"].document["labels"] = {"team": "vision"}
    await until(lambda: changes == [ECHO_KEY] * 2)
    del empty_provider.functions["echo"]
    await until(lambda: changes == [ECHO_KEY] * 3)
    stop()
    stop()
    empty_provider.add("echo")
    await until(store.functions)
    assert changes == [ECHO_KEY] * 3


async def test_secrets_are_kept_there_whole_and_none_comes_back(empty_provider: PlayedProvider, store: ProviderStore) -> None:
    raw = FunctionKey("raw")
    await asyncio.to_thread(store.put_secret, raw, b"\x00\xff")
    await asyncio.to_thread(store.put_secret, FunctionKey("text"), b"one")
    await asyncio.to_thread(store.put_secret, FunctionKey("text"), b"two")
    assert empty_provider.secrets == {"raw": b"\x00\xff", "text": b"two"}
    assert await asyncio.to_thread(store.secrets, "openfaas-fn") == ["raw", "text"]
    assert await asyncio.to_thread(store.secret, raw) == b""
    assert await asyncio.to_thread(store.delete_secret, raw) is True
    assert await asyncio.to_thread(store.delete_secret, raw) is False
    assert await asyncio.to_thread(store.secret, raw) is None


async def test_a_secret_that_a_function_there_has_is_there(empty_provider: PlayedProvider, store: ProviderStore) -> None:
    empty_provider.add("echo", secrets=["unlisted"])
    await until(store.functions)
    assert await asyncio.to_thread(store.secret, FunctionKey("unlisted")) == b""
    assert await asyncio.to_thread(store.secret, FunctionKey("unlisted", "other")) is None


async def test_unsupported_operation_answers_with_the_provider_s_message(store: ProviderStore) -> None:
    """The played provider has no routes for making namespaces."""
    with pytest.raises(GnomonError) as refused:
        await asyncio.to_thread(store.put_namespace, StoredNamespace("staging"))
    assert (refused.value.status, refused.value.code) == (404, "provider_refused")
    assert "make the namespace staging" in refused.value.message
    assert store.namespaces() == []
    with pytest.raises(GnomonError) as refused:
        await asyncio.to_thread(store.put_function, stored("no-tag"))
    assert refused.value.status == 400
