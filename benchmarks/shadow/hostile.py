"""What the fuzzing of sockets says: messages whose fields are anything, the same for the same seed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gnomon_core.packets import MAX_PACKET_BYTES

PATIENCE_S = 20.0
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**70, 1e400, -0.5, "", "x", "pool-1-1", "a" * 5000, "\0", [], [[]], [0, 0], [-1], [2, 1],
    [True], ["0"], list(range(5000)), {}, {"a": 1}, [10**30],
)  # fmt: skip


def hostile(chance: random.Random, verb: str, verbs: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
    """A message that does, says or tells one of `verbs`, with some of `fields`: small enough for a packet."""
    message: dict[str, Any] = {verb: chance.choice(verbs)}
    message |= {field: chance.choice(VALUES) for field in chance.sample(fields, chance.randint(0, min(6, len(fields))))}
    while len(json.dumps(message)) > MAX_PACKET_BYTES:
        message.popitem()
    return message


def descriptors_of(pid: int) -> int:
    """How many a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def keeps_no_more(pid: int, most: int) -> None:
    """Return when a process has no more open than so many: the last of the news may still be on its way.

    Raises:
        RuntimeError: it keeps more.

    """
    end_s = time.monotonic() + PATIENCE_S
    while (there := descriptors_of(pid)) > most:
        if time.monotonic() > end_s:
            raise RuntimeError(f"at most {most} descriptors were expected, and {there} are there")
        time.sleep(0.01)
