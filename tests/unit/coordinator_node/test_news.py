"""Who waits for a later state, and for how long."""

import asyncio

from gnomon_coordinator.node.pod_sockets import News


async def waits(news: News, incarnation: str, version: int, patience_s: float = 60.0) -> bool:
    """Whether somebody who has seen this much is kept waiting."""
    task = asyncio.create_task(news.later_than(incarnation, version, patience_s))
    for _ in range(5):
        await asyncio.sleep(0)
    kept = not task.done()
    task.cancel()
    return kept


async def test_who_has_seen_the_newest_waits_until_it_is_history() -> None:
    news = News()
    seen = news.version
    assert await waits(news, news.incarnation, seen)
    waiting = asyncio.create_task(news.later_than(news.incarnation, seen, 60.0))
    await asyncio.sleep(0)
    news.happened()
    await asyncio.wait_for(waiting, 10.0)
    assert not await waits(news, news.incarnation, seen)
    assert await waits(news, news.incarnation, news.version)


async def test_who_comes_anew_or_knew_another_process_waits_for_nothing() -> None:
    news = News()
    assert not await waits(news, "", 0)
    assert not await waits(news, "another", news.version + 5)
    assert not await waits(news, news.incarnation, news.version, 0.0)


async def test_nobody_waits_for_a_process_that_ends() -> None:
    news = News()
    waiting = asyncio.create_task(news.later_than(news.incarnation, news.version, 60.0))
    await asyncio.sleep(0)
    news.end()
    await asyncio.wait_for(waiting, 10.0)
    assert not await waits(news, news.incarnation, news.version)
