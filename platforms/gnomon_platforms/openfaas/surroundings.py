"""What a function in the cluster lives among: what is seen of it, what is shared with others, and who decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.channel import Heard
from gnomon_platforms.kubernetes.ledger import Ledger
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.pods import PodFacts

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Of all functions of a fleet.

    `deployed` and `pods` are what informers hold of it. `adopting` says whether pods of an earlier process may be used again.
    `left_alone` says whether its pods are somebody else's to count. `caught_up` returns when informers hold this generation of a
    Deployment, or after a while. `leads` says whether this process decides; while another one does, its pods are only followed.
    `heard` is when something was heard of each node. `warn` puts a reason and a text where operators look at a function. `ledger`
    is what instances have of nodes.
    """

    deployed: Callable[[FunctionKey], DeployedFunction | None]
    pods: Callable[[FunctionKey], Iterable[PodFacts]]
    session: aiohttp.ClientSession
    clock: Clock
    adopting: Callable[[], bool]
    left_alone: Callable[[FunctionKey], bool]
    caught_up: Callable[[FunctionKey, int], Awaitable[None]]
    start_timeout_s: float
    leads: Callable[[], bool] = lambda: True
    warn: Callable[[FunctionKey, str, str], None] = lambda *_: None
    ledger: Ledger = field(default_factory=Ledger)
    heard: defaultdict[str, Heard] = field(default_factory=lambda: defaultdict(Heard))
