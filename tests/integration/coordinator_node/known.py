"""A Body's answers by itself, with which the answers of its pair are compared; and calls without a pause."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass

import torch

from tests.integration.coordinator_node.node import SPLIT, Body, Node


@dataclass(frozen=True)
class Known:
    """A Body's answers by itself: to a batch, and to its rows and those of its Shadow one after the other.

    A kernel may give a row other last bits in a batch of another size, and a pair computes two smaller ones.
    """

    given: torch.Tensor
    whole: list[bytes]
    parts: list[bytes]

    @staticmethod
    def of(node: Node, body: Body, samples: int = 4) -> Known:
        given = node.batch(samples)
        kept = samples - SPLIT[samples - 1]
        (whole, none), (first, _) = body.ask(given), body.ask(given[:kept])
        assert none == 0
        return Known(given, whole, first + (body.ask(given[kept:])[0] if kept < samples else []))

    def together(self, body: Body) -> bool:
        """True if the pair's answer is right, to the bit."""
        answers, hand_overs = body.ask(self.given)
        return answers == self.parts and hand_overs == 1

    def alone(self, body: Body) -> bool:
        """The same of the Body without its Shadow."""
        return body.ask(self.given) == (self.whole, 0)

    def answered(self, body: Body) -> bool:
        """The same whether it has a Shadow just now, or loses it meanwhile."""
        return body.ask(self.given)[0] in (self.whole, self.parts)


@contextlib.asynccontextmanager
async def asked_all_the_time(body: Body, known: Known) -> AsyncIterator[None]:
    """Batches, one after the other: each answer is right to the bit, and was computed by both."""
    over = threading.Event()

    def ask() -> list[bool]:
        found = []
        while not over.is_set() or not found:
            found.append(known.together(body))
        return found

    asking = asyncio.create_task(asyncio.to_thread(ask))
    try:
        yield
    finally:
        over.set()
        found = await asking
    assert all(found), found
