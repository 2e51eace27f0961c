"""The contract of every platform that can pair. A new implementation inherits `PairContract`."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceKind, InstanceState
from gnomon_core.interfaces import Platform
from gnomon_core.pairs import Pair
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.repository import DirectoryRepository
from tests.contracts.couples import OTHER_SPLIT, SPLIT, Couple, coordinator, couple_on, near, small_network, stop_ends_both
from tests.garbage import collected_only_when_asked, garbage, is_ours
from tests.platform_testing import NothingBuilt, Recorder

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

NUMBERS = itertools.count(1)


class PairContract:
    """Needs the fixture `couple`: a started platform with room for two Shadows, whose model has at least two layer blocks.

    Whoever stops that platform calls `stop_ends_both`.
    """

    async def test_a_shadow_is_begun_at_once_and_told_when_its_body_works_with_it(self, couple: Couple) -> None:
        alone, none = await couple.ask()
        shadow = await couple.platform.create_shadow(couple.body.id, Pair(1, (0, 1), SPLIT))
        assert (shadow.kind, shadow.state, shadow.partner) == (InstanceKind.SHADOW, InstanceState.STARTING, couple.body.id)
        assert (shadow.function, shadow.version, shadow.cores) == (couple.body.function, couple.body.version, 1)
        await couple.listener.until(lambda: bool(couple.pairs))
        [body] = couple.pairs
        assert (body.id, body.kind, body.partner) == (couple.body.id, InstanceKind.BODY, shadow.id)
        assert body.pair == Pair(1, (0, 1), SPLIT)
        assert couple.seen()[couple.body.id] == body
        listed = couple.seen()[shadow.id]
        assert (listed.state, listed.partner, listed.pair) == (InstanceState.READY, couple.body.id, body.pair)
        together, hand_overs = await couple.share()
        assert (none, hand_overs) == ([], ["answered"])
        assert together == near(alone)
        assert shadow.id not in couple.listener.channels, "it takes no batches"

    async def test_a_body_may_have_several_shadows_and_nobody_has_none(self, couple: Couple) -> None:
        alone, _ = await couple.ask()
        first = await couple.shadow((0, 1))
        second = await couple.shadow((0, 1), OTHER_SPLIT)
        body = couple.pairs[-1]
        assert body.shadows == {first.id: Pair(1, (0, 1), SPLIT), second.id: Pair(1, (0, 1), OTHER_SPLIT)}
        assert couple.seen()[couple.body.id] == body
        assert await couple.share(2) == (near(alone), ["answered"] * 2)
        with pytest.raises(GnomonError) as refused:
            await couple.platform.create_shadow("nobody", Pair(1, (0,), SPLIT))
        assert (refused.value.status, refused.value.code) == (409, "no_such_body")
        assert len(couple.seen()) == 3

    async def test_a_shadow_on_a_node_that_is_not_there_is_refused(self, couple: Couple) -> None:
        before = couple.platform.nodes()
        with pytest.raises(GnomonError) as refused:
            await couple.platform.create_shadow(couple.body.id, Pair(1, (0,), SPLIT, "nowhere"))
        assert (refused.value.status, refused.value.code) == (404, "no_such_node")
        assert couple.platform.nodes() == before

    async def test_one_shadow_changes_and_ends_while_the_other_serves(self, couple: Couple) -> None:
        alone, _ = await couple.ask()
        first, second = await couple.shadow(), await couple.shadow((0,), OTHER_SPLIT)
        other = Pair(1, (0,), (0, 0, 1, 1))
        await couple.platform.change_shadow(first.id, other)
        await couple.listener.until(lambda: couple.pairs[-1].shadows.get(first.id) == other)
        assert couple.pairs[-1].shadows[second.id] == Pair(1, (0,), OTHER_SPLIT)
        assert await couple.share(2) == (near(alone), ["answered"] * 2)
        await couple.platform.destroy(first.id)
        await couple.listener.reason(first.id)
        assert couple.pairs[-1].shadows == {second.id: Pair(1, (0,), OTHER_SPLIT)}
        assert couple.listener.times_gone.get(second.id, 0) == 0
        assert await couple.share() == (near(alone), ["answered"])

    async def test_a_body_takes_all_of_its_shadows_along(self, couple: Couple) -> None:
        shadows = [await couple.shadow(), await couple.shadow()]
        await couple.platform.destroy(couple.body.id)
        for gone in (couple.body, *shadows):
            await couple.listener.reason(gone.id)
        assert couple.seen() == {}

    async def test_shadows_that_have_ended_or_risen_leave_nothing_to_the_garbage_collector(self, couple: Couple) -> None:
        with collected_only_when_asked():
            ended, risen = await couple.shadow(), await couple.shadow()
            await couple.platform.destroy(ended.id)
            await couple.listener.reason(ended.id)
            await couple.platform.promote_shadow(risen.id)
            await couple.listener.channel(risen.id)
            for body in (couple.body.id, risen.id):
                await couple.platform.destroy(body)
                await couple.listener.reason(body)
            couple.listener.channels.clear()
            assert garbage(is_ours) == Counter()

    async def test_a_shadow_that_does_not_fit_is_refused_and_takes_nothing(self, couple: Couple) -> None:
        before = couple.platform.nodes()
        with pytest.raises(GnomonError) as refused:
            await couple.platform.create_shadow(couple.body.id, Pair(5000, (0,), SPLIT))
        assert (refused.value.status, refused.value.code) == (503, "no_capacity")
        assert couple.platform.nodes() == before
        assert list(couple.seen()) == [couple.body.id]

    async def test_other_blocks_and_another_split_hold_once_the_body_says_so(self, couple: Couple) -> None:
        alone, _ = await couple.ask()
        shadow = await couple.shadow((0,))
        other = Pair(1, (0, 1), (0, 0, 1, 1))
        await couple.platform.change_shadow(shadow.id, other)
        await couple.listener.until(lambda: couple.pairs[-1].pair == other)
        assert couple.pairs[-1].partner == shadow.id
        assert await couple.share() == (near(alone), ["answered"])

    async def test_a_destroyed_shadow_leaves_its_body_first_and_gives_its_place_back(self, couple: Couple) -> None:
        before = couple.platform.nodes()
        shadow = await couple.shadow()
        assert couple.platform.nodes()[0].free_cores < before[0].free_cores
        await couple.platform.destroy(shadow.id)
        await couple.platform.destroy(shadow.id)
        await couple.listener.reason(shadow.id)
        assert couple.order(couple.body.id, shadow.id)[-2:] == [("alone", couple.body.id), ("gone", shadow.id)]
        last = couple.pairs[-1]
        assert (last.partner, last.pair) == (None, None)
        assert couple.listener.times_gone[shadow.id] == 1
        assert couple.platform.nodes() == before
        _, hand_overs = await couple.ask()
        assert hand_overs == []
        assert (await couple.shadow()).id != shadow.id, "and it may have another"

    async def test_a_body_takes_its_shadow_along(self, couple: Couple) -> None:
        shadow = await couple.shadow()
        await couple.platform.destroy(couple.body.id)
        await couple.listener.reason(couple.body.id)
        await couple.listener.reason(shadow.id)
        assert couple.listener.times_gone[shadow.id] == couple.listener.times_gone[couple.body.id] == 1
        assert couple.seen() == {}

    async def test_a_shadow_destroyed_before_it_began_is_gone_as_well(self, couple: Couple) -> None:
        shadow = await couple.platform.create_shadow(couple.body.id, Pair(1, (0,), SPLIT))
        await couple.platform.destroy(shadow.id)
        await couple.listener.reason(shadow.id)
        assert couple.listener.times_gone[shadow.id] == 1
        assert list(couple.seen()) == [couple.body.id]
        assert couple.seen()[couple.body.id].partner is None

    async def test_a_promoted_shadow_goes_on_until_it_is_a_body_like_any_other(self, couple: Couple) -> None:
        alone, _ = await couple.ask()
        shadow = await couple.shadow()
        free = couple.platform.nodes()[0]
        rising = await couple.platform.promote_shadow(shadow.id)
        assert (rising.id, rising.kind, rising.state) == (shadow.id, InstanceKind.BODY, InstanceState.STARTING)
        assert (rising.partner, rising.pair, rising.cores) == (None, None, shadow.cores)
        assert rising.memory_bytes == couple.body.memory_bytes
        taken = couple.platform.nodes()[0]
        assert taken.free_cores == free.free_cores
        assert taken.free_memory_bytes == free.free_memory_bytes - rising.memory_bytes + shadow.memory_bytes
        assert couple.seen()[shadow.id] == rising
        # While it loads the pair is asked all the time: no batch is lost, and each has the same answer.
        while shadow.id not in couple.listener.ready:
            assert (await couple.ask())[0] == near(alone)
            assert shadow.id not in couple.listener.gone, couple.listener.gone[shadow.id]
        risen = couple.listener.ready[shadow.id]
        assert risen == replace(rising, state=InstanceState.READY) == couple.seen()[shadow.id]
        assert couple.seen()[couple.body.id].partner is None
        assert couple.pairs[-1].pair is None
        assert couple.order(couple.body.id)[-1] == ("alone", couple.body.id)
        other = replace(couple, body=risen)
        assert await other.ask() == (near(alone), [])
        assert await couple.ask() == (near(alone), [])
        its_own = await other.shadow()
        assert await other.share() == (near(alone), ["answered"])
        await couple.platform.destroy(risen.id)
        await couple.listener.reason(risen.id)
        await couple.listener.reason(its_own.id)
        assert couple.listener.times_gone[risen.id] == 1
        assert couple.platform.nodes()[0].free_cores == free.free_cores + shadow.cores
        assert list(couple.seen()) == [couple.body.id]

    async def test_only_a_shadow_that_works_becomes_a_body_and_only_once(self, couple: Couple) -> None:
        shadow = await couple.shadow()
        await couple.platform.promote_shadow(shadow.id)
        for name in (shadow.id, couple.body.id, "nobody"):
            with pytest.raises(GnomonError) as refused:
                await couple.platform.promote_shadow(name)
            assert (refused.value.status, refused.value.code) == (409, "no_such_shadow")
        await couple.listener.channel(shadow.id)

    async def test_shadow_ended_while_starting_leaves_its_body_and_frees_its_cores(self, couple: Couple) -> None:
        before = couple.platform.nodes()
        shadow = await couple.shadow()
        await couple.platform.promote_shadow(shadow.id)
        await couple.platform.destroy(shadow.id)
        await couple.listener.reason(shadow.id)
        assert couple.order(couple.body.id, shadow.id)[-2:] == [("alone", couple.body.id), ("gone", shadow.id)]
        assert couple.listener.times_gone[shadow.id] == 1
        assert shadow.id not in couple.listener.ready
        assert couple.platform.nodes() == before
        _, hand_overs = await couple.ask()
        assert hand_overs == []

    async def test_a_body_that_ends_does_not_take_along_what_becomes_one(self, couple: Couple) -> None:
        alone, _ = await couple.ask()
        shadow = await couple.shadow()
        await couple.platform.promote_shadow(shadow.id)
        await couple.platform.destroy(couple.body.id)
        await couple.listener.reason(couple.body.id)
        await couple.listener.channel(shadow.id)
        assert await replace(couple, body=couple.listener.ready[shadow.id]).ask() == (near(alone), [])

    async def test_unknown_shadows_are_ignored(self, couple: Couple) -> None:
        await couple.platform.change_shadow("nobody", Pair(1, (0,), SPLIT))
        await couple.platform.destroy("nobody")
        assert couple.pairs == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Platform, Recorder]]:
    """A platform shared by all tests: its zygote takes seconds to import torch. The last test stops it."""
    folder = tmp_path_factory.mktemp("local")
    repository = DirectoryRepository(folder / "models")
    repository.put("small", "1", small_network())
    platform, listener = LocalPlatform(folder / "state", repository, NothingBuilt(), cores=4), Recorder()
    await platform.start(listener)
    yield platform, listener
    await stop_ends_both(await couple_on(platform, listener, "last"))


class TestLocalPlatform(PairContract):
    @pytest_asyncio.fixture(loop_scope="module")
    async def couple(self, local: tuple[Platform, Recorder]) -> AsyncIterator[Couple]:
        made = await couple_on(*local, f"small-{next(NUMBERS)}")
        yield made
        for instance in made.seen().values():
            await made.platform.destroy(instance.id)
            await made.listener.reason(instance.id)

    async def test_a_shadow_that_is_killed_costs_its_body_nothing(self, couple: Couple) -> None:
        alone, _ = await couple.ask()
        shadow = await couple.shadow()
        assert isinstance(couple.platform, LocalPlatform)
        pid = couple.platform._pairs.shadows[shadow.id].pid
        assert pid is not None
        answer = asyncio.create_task(couple.ask())
        os.kill(pid, signal.SIGKILL)
        assert (await answer)[0] == near(alone)
        reason = await couple.listener.reason(shadow.id)
        assert "SIGKILL" in reason
        assert couple.order(couple.body.id, shadow.id)[-2:] == [("alone", couple.body.id), ("gone", shadow.id)]
        assert couple.listener.times_gone[shadow.id] == 1
        assert (await couple.ask())[0] == near(alone)

    async def test_a_shadow_stays_one_where_the_whole_model_does_not_fit(self, couple: Couple) -> None:
        shadow = await couple.shadow()
        assert isinstance(couple.platform, LocalPlatform)
        node = couple.platform._node
        node.allocate("others", 0.0, node.unallocated_memory_bytes, 1)
        try:
            before = couple.platform.nodes()
            with pytest.raises(GnomonError) as refused:
                await couple.platform.promote_shadow(shadow.id)
            assert (refused.value.status, refused.value.code) == (503, "no_capacity")
            assert couple.platform.nodes() == before
            assert couple.seen()[shadow.id].kind is InstanceKind.SHADOW
            assert (await couple.share())[1] == ["answered"]
        finally:
            node.release("others")

    @pytest.mark.parametrize("wait_s", [0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1])
    @pytest.mark.parametrize("whom", ["shadow", "body", "coordinator"])
    async def test_kill_during_a_promotion_leaves_a_consistent_state(self, couple: Couple, whom: str, wait_s: float) -> None:
        """The Shadow is a Body, or has gone; a Body that lives answers right, alone or not; nothing is told twice."""
        alone, _ = await couple.ask()
        before = couple.platform.nodes()[0].free_cores
        shadow = await couple.shadow()
        assert isinstance(couple.platform, LocalPlatform)
        pairs, instance_of = couple.platform._pairs, couple.platform._instances
        pids = {"shadow": pairs.shadows[shadow.id].pid, "body": instance_of[couple.body.id].pid, "coordinator": coordinator()}
        await couple.platform.promote_shadow(shadow.id)
        answer = asyncio.create_task(couple.ask()) if whom != "body" else None
        await asyncio.sleep(wait_s)
        os.kill(pids[whom] or 0, signal.SIGKILL)
        if answer is not None:
            assert (await answer)[0] == near(alone)
        listener = couple.listener
        dead = {"shadow": shadow.id, "body": couple.body.id}.get(whom)
        if dead is not None:
            await listener.reason(dead)
            assert listener.times_gone[dead] == 1
        if whom != "shadow":
            await listener.until(lambda: shadow.id in listener.ready or shadow.id in listener.gone)
        if shadow.id in listener.ready and shadow.id not in listener.gone:
            assert (await replace(couple, body=listener.ready[shadow.id]).ask())[0] == near(alone)
        if couple.body.id not in listener.gone:
            assert (await couple.ask())[0] == near(alone)
        alive = [name for name in (couple.body.id, shadow.id) if name not in listener.gone]
        assert [*couple.seen()] == alive
        assert couple.platform.nodes()[0].free_cores == before + 1 - len(alive)
