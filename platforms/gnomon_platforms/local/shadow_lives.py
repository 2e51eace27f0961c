"""One Shadow from the wish for it to its end, as the platform knows it.

    create ▶ the coordinator is told ▶ born: a pid ▶ registered: ready ▶ paired … ▶ destroy: unpaired, stopped ▶ gone
                                                          promote ▶ complete, unpaired ▶ HELLO: a Body, in `lives`

What the coordinator has been asked for it can be asked for again, by whichever one is there: the wish, and the papers (the order
and the pipe of its log) until the Shadow has registered; those of its promotion until it is a Body. From the promotion on it is
told of as the Body that it will be.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gnomon_core import packets
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.launch import Order
from gnomon_core.pairs import Pair
from gnomon_platforms.local import usage
from gnomon_platforms.local.channel import UnixChannel, channel_pair
from gnomon_platforms.local.lives import Risen, Surroundings
from gnomon_platforms.local.logs import LogPipe

STOP_S = 9.0
"""How long the coordinator may take to end it: its Body may be in the middle of a batch, and lets go first."""


class ShadowLife:
    """`instance` is what the platform reports of it now; `ask` reaches the coordinator."""

    def __init__(
        self,
        instance: Instance,
        key: FunctionKey,
        environment: str,
        surroundings: Surroundings,
        ask: Callable[..., None],
    ) -> None:
        self.instance = instance
        self.key = key
        self.environment = environment
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pid: int | None = None
        self.wish: dict[str, Any] = {}
        self._surroundings = surroundings
        self._ask = ask
        self.body_id = instance.partner or ""
        self._channel: UnixChannel | None = None
        """Of the Body that it becomes."""
        self._rising: tuple[int, ...] = ()
        self._papers: tuple[int, ...] = ()
        self._log: LogPipe | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._why = ""
        self._stopping = False

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return 0.0 if self.pid is None else usage.cpu_s(self.pid)

    def order(self, wish: Mapping[str, Any], order: int, timeout_s: float) -> None:
        """Ask for it. The order, an anonymous file, is ours to close from now on."""
        log_read, log_write = os.pipe()
        surroundings = self._surroundings
        self._log = LogPipe(log_read, partial(surroundings.listener.log_line, self.key, self.instance.id), surroundings.now_s)
        self._papers = (order, log_write)
        self.wish = dict(wish)
        self._ask(self.wish, self._papers)
        self._after(timeout_s, lambda: self.kill(f"not ready after {timeout_s:g} s"))

    def ask_again(self) -> None:
        """There is another coordinator, which may know nothing of this."""
        if self._stopping:
            self._ask({"do": "destroy", "shadow": self.instance.id})
        elif self.wish:
            self._ask(self.wish, self._papers)
            if self._rising:
                self._ask({"do": "promote", "shadow": self.instance.id}, self._rising)

    def born(self, pid: int) -> None:
        """A container has become this Shadow."""
        self.pid = pid

    def registered(self) -> None:
        """It has its blocks."""
        self._drop_order()
        if self._stopping or self.rises or self.instance.state is not InstanceState.STARTING:
            return
        self._cancel_timer()
        self.instance = replace(self.instance, state=InstanceState.READY)

    def change(self, pair: Pair, cpus: tuple[int, ...], memory_bytes: int, expected_ms: list[list[float]]) -> None:
        """Let it do something else."""
        self.instance = replace(self.instance, cores=pair.shadow_cores, memory_bytes=memory_bytes)
        details = {
            "cores": pair.shadow_cores,
            "cpus": list(cpus),
            "blocks": list(pair.blocks),
            "split": list(pair.split),
            "expected_ms": expected_ms,
        }
        self.wish |= details
        self._ask({"do": "change", "shadow": self.instance.id, **details})

    def works(self, pair: Pair | None) -> None:
        """What it does with its Body from now on."""
        if not self.rises:
            self.instance = replace(self.instance, pair=pair)

    @property
    def rises(self) -> bool:
        """Whether it becomes a Body."""
        return self._channel is not None

    def promote(self, order: Order, memory_bytes: int, timeout_s: float, risen: Callable[[], None]) -> None:
        """Let it become the Body of this order; `risen` is called with its first word as one."""
        ours, theirs = channel_pair()
        self._channel = UnixChannel(ours, lambda _: None if self._stopping else risen(), self._channel_lost)
        self._rising = (packets.sealed_file("order", order.to_json().encode()), theirs.detach())
        self.instance = replace(
            self.instance,
            kind=InstanceKind.BODY,
            state=InstanceState.STARTING,
            cores=order.launch.cores,
            memory_bytes=memory_bytes,
            started_s=self._surroundings.now_s(),
            partner=None,
            pair=None,
        )
        self._ask({"do": "promote", "shadow": self.instance.id}, self._rising)
        self._after(timeout_s, lambda: self.kill(f"not a Body after {timeout_s:g} s"))

    def leave(self) -> Risen:
        """It is a Body. What it had is that Body's now."""
        assert self._channel is not None
        self._cancel_timer()
        self._drop_papers()
        return Risen(self.instance, self.key, self.environment, self.gone, self.pid, self._channel, self._log)

    def _channel_lost(self, reason: str) -> None:
        if not self._stopping and not self.gone.done():
            self.kill(reason)

    def stop(self) -> None:
        """End it: its Body lets go of it first. May be called again."""
        if self._stopping or self.gone.done():
            return
        self._begin_to_stop("stopped")
        if not self.wish:
            self.end(0.0, "stopped before it began")
            return
        self._ask({"do": "destroy", "shadow": self.instance.id})
        self._after(STOP_S, self._kill_now)

    def ending(self, reason: str) -> None:
        """The coordinator ends it, asked to or not."""
        if not self._stopping:
            self._begin_to_stop(reason)
            self._after(STOP_S, self._kill_now)

    def failed(self, reason: str) -> None:
        """The coordinator has no process for it. One that has ended meanwhile is the supervisor's to report."""
        if self.pid is None:
            self.end(0.0, reason)
        else:
            self._begin_to_stop(reason)
            self._kill_now()

    def kill(self, reason: str) -> None:
        """End it at once."""
        self._begin_to_stop(reason)
        self._kill_now()
        self._ask({"do": "destroy", "shadow": self.instance.id})

    def end(self, cpu_s: float, reason: str) -> None:
        """The process has gone, or there never was one. Tells the listener, once."""
        if self.gone.done():
            return
        # Its first word as a Body may still be unread, and comes too late.
        self._stopping = True
        self._cancel_timer()
        self._drop_papers()
        if self._channel is not None:
            self._channel.close()
        words = ""
        if self._log is not None:
            self._log.close()
            words = " | ".join(line.strip() for line in self._log.last if line.strip(" ^~"))
        self.instance = replace(self.instance, state=InstanceState.GONE)
        self._surroundings.ended(self, cpu_s)
        self.gone.set_result(None)
        text = f"{self._why}: {reason}" if self._why and reason else self._why or reason
        failed = self._why != "stopped"
        self._surroundings.listener.instance_gone(
            self.instance.id, f"{text}; its log ends: {words}" if failed and words else text
        )

    def _begin_to_stop(self, reason: str) -> None:
        self._stopping = True
        self._why = self._why or reason
        if not self.gone.done():
            self.instance = replace(self.instance, state=InstanceState.DRAINING)

    def _kill_now(self) -> None:
        self._surroundings.send({"do": "kill", "id": self.instance.id, "signal": int(signal.SIGKILL)})

    def _drop_order(self) -> None:
        papers, self._papers = self._papers, ()
        for descriptor in papers:
            os.close(descriptor)

    def _drop_papers(self) -> None:
        self._drop_order()
        papers, self._rising = self._rising, ()
        for descriptor in papers:
            os.close(descriptor)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, act)
