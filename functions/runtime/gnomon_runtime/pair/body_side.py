"""A Body's side of a pair: takes orders between batches and while it is idle, and runs batches with its Shadow or alone.

    idle    waits for the batch channel, the coordination socket and the data socket at once
    busy    looks at neither of the last two until the batch is answered, except for the Shadow's answers

An order never costs a batch: a pair is made, changed or ended before the next batch begins. A Shadow that dies while the Body is
idle is noticed at once, so that the pair's memory is given back then and not at the next batch.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gnomon_core import packets
from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_runtime.application import Channel
from gnomon_runtime.engine import LoadedProgram
from gnomon_runtime.pair.headers import NonsenseError
from gnomon_runtime.pair.link import Link
from gnomon_runtime.pair.orders import Coordination, Order, close
from gnomon_runtime.pair.patience import Predictions
from gnomon_runtime.pair.shadow_model import read_layers
from gnomon_runtime.pair.split_model import RunTiming, SplitModel

_REFUSALS = (ValueError, KeyError, TypeError, OSError, GnomonError)
"""What an order that cannot be carried out raises."""


class BodySide:
    """The model of a Body, and its Shadow where it has one."""

    def __init__(self, model: LoadedProgram, program_sha256: str, layers: Path) -> None:
        self._model = model
        self._sha256 = program_sha256
        self._layers_file = layers
        self._layers: Layers | None = None
        self._coordination: Coordination | None = None
        self._shadow = ""
        self._link: Link | None = None
        self._split: SplitModel | None = None
        self._poll = select.poll()
        self._watched: set[int] = set()
        self._orders: Mapping[str, Callable[[dict[str, Any], list[int]], None]] = {
            "hello": self._hello,
            "pair": self._pair,
            "change": self._change,
            "unpair": self._unpair,
        }

    def listen(self, coordination: Coordination) -> None:
        """Take orders from this socket from now on."""
        self._coordination = coordination
        self._watch(coordination.fileno())

    def attend(self, channel: Channel) -> None:
        """Return when the channel has a frame, or has ended; until then, do what the coordinator says."""
        while True:
            self._watch(channel.fileno())
            ready = {descriptor for descriptor, _ in self._poll.poll(0 if channel.holds_more else None)}
            if self._link is not None and self._link.fileno() in ready:
                self._look_at_shadow(self._link)
            if self._coordination is not None and self._coordination.fileno() in ready:
                self._obey(self._coordination)
            if channel.holds_more or channel.fileno() in ready:
                return

    def run(self, inputs: Sequence[Tensor], left_s: float | None) -> tuple[tuple[Tensor, ...], list[RunTiming]]:
        """The outputs of a batch that must be done in `left_s` seconds, and how its hand-overs went."""
        split = self._split
        batch = inputs[0].shape[0] if inputs and inputs[0].dim() else 0
        if split is None or not split.samples(batch):
            return self._model.executor.run(inputs), []
        try:
            return split.run(inputs, left_s), split.timings
        finally:
            if split.over is not None:
                self._end(split.over)

    def end(self) -> None:
        """Give back what the pair holds."""
        if self._link is not None:
            self._unwatch(self._link.fileno())
            self._link.close()
        self._link = self._split = None
        self._shadow = ""

    def _end(self, reason: str) -> None:
        shadow = self._shadow
        self.end()
        self._say("unpaired", shadow=shadow, reason=reason)

    def _look_at_shadow(self, link: Link) -> None:
        """Late answers are of no use any more; the end of the socket ends the pair."""
        try:
            link.pending()
        except packets.PeerGoneError:
            self._end("the Shadow has gone")
        except NonsenseError as error:
            self._end(f"the Shadow sends nonsense: {error}")

    def _obey(self, coordination: Coordination) -> None:
        try:
            while (order := coordination.take()) is not None:
                self._carry_out(order)
        except packets.PeerGoneError:
            # The pair goes on without a coordinator, as long as both of it live.
            self._unwatch(coordination.fileno())
            self._coordination = None
            coordination.close()

    def _carry_out(self, order: Order) -> None:
        message, descriptors = order
        carry_out = self._orders.get(str(message.get("do")))
        try:
            if carry_out is not None:
                carry_out(message, descriptors)
        except _REFUSALS as error:
            self._say("failed", shadow=str(message.get("shadow", self._shadow)), reason=f"{type(error).__name__}: {error}")
        finally:
            close(descriptors)

    def _hello(self, _message: dict[str, Any], _descriptors: list[int]) -> None:
        pair = None if self._split is None else self._split.pair
        self._say(
            "body",
            partner=self._shadow or None,
            blocks=list(pair.blocks) if pair else [],
            split=list(pair.split) if pair else [],
        )

    def _pair(self, message: dict[str, Any], descriptors: list[int]) -> None:
        self.end()
        link = Link(descriptors, body=True)
        try:
            self._begin(link, message)
        except _REFUSALS:
            link.close()
            raise
        self._shadow, self._link = str(message["shadow"]), link
        self._watch(link.fileno())
        self._say("paired", shadow=self._shadow)

    def _change(self, message: dict[str, Any], _descriptors: list[int]) -> None:
        if self._link is None or self._split is None:
            raise ValueError("there is no pair to change")
        self._begin(self._link, {"shadow_cores": self._split.pair.shadow_cores, **message})
        self._say("changed", blocks=[int(block) for block in message["blocks"]])

    def _unpair(self, _message: dict[str, Any], _descriptors: list[int]) -> None:
        if self._link is not None:
            self._end("told to")

    def _begin(self, link: Link, message: Mapping[str, Any]) -> None:
        if self._layers is None:
            self._layers = read_layers(self._layers_file, self._sha256)
        pair = Pair(int(message["shadow_cores"]), _numbers(message["blocks"]), _numbers(message["split"]))
        expected_ms = tuple(tuple(float(time_ms) for time_ms in row) for row in message.get("expected_ms", ()))
        self._split = SplitModel(self._model, self._layers, pair, link, Predictions(expected_ms))

    def _say(self, what: str, **details: Any) -> None:
        if self._coordination is not None:
            self._coordination.say(what, **details)

    def _watch(self, descriptor: int) -> None:
        if descriptor not in self._watched:
            self._watched.add(descriptor)
            self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        self._watched.discard(descriptor)
        self._poll.unregister(descriptor)


def left_s(budget_s: float, began_s: float) -> float | None:
    """What is left of a batch's time; None where the gateway named none."""
    return budget_s - (time.monotonic() - began_s) if budget_s > 0 else None


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
