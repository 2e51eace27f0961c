"""A Body's side of its pairs: carries out orders between batches and while idle, and runs batches with its Shadows or alone.

    idle    waits for the batch channel, the coordination socket and the data socket of each Shadow at once
    busy    looks at none of the others until the batch is answered, except for the Shadows' answers

An order never interrupts a batch: a pair is made, changed or ended before the next batch begins. The end of a Shadow is noticed
at once while the Body is idle, so that the pair's memory is released then and not at the next batch.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gnomon_core import packets
from gnomon_core.blocks import Layers
from gnomon_core.pairs import ELSEWHERE, MAX_SHADOWS, Pair
from gnomon_runtime.application import Channel
from gnomon_runtime.engine.loaded_model import LoadedModel
from gnomon_runtime.pair.headers import NonsenseError
from gnomon_runtime.pair.link import DataPath
from gnomon_runtime.pair.orders import REFUSALS, Coordination, OrderHandler
from gnomon_runtime.pair.partner import Partner, Predictions
from gnomon_runtime.pair.remote_link import data_path
from gnomon_runtime.pair.shadow_model import read_layers
from gnomon_runtime.pair.split_model import RunTiming, SplitModel


class BodySide:
    """The model of a Body, and its Shadows if it has any."""

    def __init__(self, model: LoadedModel, program_sha256: str, layers: Path) -> None:
        self._model = model
        self._sha256 = program_sha256
        self._layers_file = layers
        self._layers: Layers | None = None
        self._orders: OrderHandler | None = None
        self._partners: dict[str, Partner] = {}
        self._split: SplitModel | None = None
        self._poll = select.poll()
        self._watched: set[int] = set()

    def listen(self, coordination: Coordination) -> None:
        """Take orders from this socket from now on, and from none before it."""
        if self._orders is not None:
            self._stop_reading(self._orders)
        handlers = {"hello": self._hello, "pair": self._pair, "change": self._change, "unpair": self._unpair}
        self._orders = OrderHandler(coordination, handlers)
        self._watch(coordination.fileno())

    def attend(self, channel: Channel) -> None:
        """Handle the coordinator's orders until the channel has a frame or has ended."""
        while True:
            self._watch(channel.fileno())
            ready = {descriptor for descriptor, _ in self._poll.poll(0 if channel.holds_more else None)}
            for partner in list(self._partners.values()):
                if partner.link.fileno() in ready:
                    self._check_link(partner)
            if self._orders is not None and self._orders.fileno() in ready:
                self._handle_orders(self._orders)
            if channel.holds_more or channel.fileno() in ready:
                return

    @property
    def shadows(self) -> dict[str, Pair]:
        """The Shadows of the next batch in the order of their rows, and the share of each."""
        return {
            partner.shadow: replace(partner.pair, node=ELSEWHERE) if partner.link.elsewhere else partner.pair
            for partner in self._partners.values()
            if partner.link.ready
        }

    def send_hint(self, batch: int) -> None:
        """Send wake-up hints for a batch of this size, which is being received."""
        if self._split is not None:
            self._split.send_hint(batch)

    def run(self, inputs: Sequence[Tensor], left_s: float | None) -> tuple[tuple[Tensor, ...], list[RunTiming]]:
        """The outputs of a batch whose deadline is in `left_s` seconds, and the timings of its hand-overs."""
        split = self._split
        batch = inputs[0].shape[0] if inputs and inputs[0].dim() else 0
        if split is None or not split.samples(batch):
            return self._model.run(inputs), []
        try:
            return split.run(inputs, left_s), split.timings
        finally:
            for partner in split.partners:
                if partner.over is not None:
                    self._end(partner, partner.over)

    def end(self) -> None:
        """Close all pairs and release their memory."""
        for partner in list(self._partners.values()):
            self._remove(partner)

    def _end(self, partner: Partner, reason: str) -> None:
        self._remove(partner)
        self._say("unpaired", shadow=partner.shadow, reason=reason)

    def _remove(self, partner: Partner) -> None:
        del self._partners[partner.shadow]
        self._unwatch(partner.link.fileno())
        partner.link.close()
        self._rebuild_split(next(iter(self._partners.values()), None))

    def _check_link(self, partner: Partner) -> None:
        """Discard late answers, and end the pair if its path has ended."""
        try:
            partner.link.pending()
            self._announce(partner.shadow, partner.link)
        except packets.PeerGoneError as error:
            self._end(partner, str(error) or "the Shadow has gone")
        except NonsenseError as error:
            self._end(partner, f"the Shadow sends nonsense: {error}")

    def _handle_orders(self, orders: OrderHandler) -> None:
        while orders.next():
            pass
        if orders.gone:
            # Pairs work without a coordinator until one of the two ends.
            self._stop_reading(orders)

    def _stop_reading(self, orders: OrderHandler) -> None:
        self._unwatch(orders.fileno())
        self._orders = None
        orders.close()

    def _hello(self, _message: dict[str, Any], _descriptors: list[int]) -> None:
        pairs = [
            {
                "shadow": partner.shadow,
                "blocks": list(partner.pair.blocks),
                "split": list(partner.pair.split),
                "elsewhere": partner.link.elsewhere,
            }
            for partner in self._partners.values()
        ]
        self._say("body", pairs=pairs)

    def _pair(self, message: dict[str, Any], descriptors: list[int]) -> None:
        shadow = str(message["shadow"])
        if (before := self._partners.get(shadow)) is not None:
            self._remove(before)
        if len(self._partners) >= MAX_SHADOWS:
            raise ValueError(f"it has {MAX_SHADOWS} Shadows")
        link = data_path(message, descriptors)
        try:
            self._begin(link, message)
        except REFUSALS:
            link.close()
            raise
        self._watch(link.fileno())
        self._announce(shadow, link)

    def _announce(self, shadow: str, link: DataPath) -> None:
        """Report "paired" once, as soon as the path is ready: a Shadow on another node must be connected first."""
        if link.ready and not link.announced:
            link.announced = True
            self._say("paired", shadow=shadow)

    def _change(self, message: dict[str, Any], _descriptors: list[int]) -> None:
        partner = self._partners[str(message["shadow"])]
        self._begin(partner.link, {"shadow_cores": partner.pair.shadow_cores, **message})
        self._say("changed", shadow=partner.shadow, blocks=[int(block) for block in message["blocks"]])

    def _unpair(self, message: dict[str, Any], _descriptors: list[int]) -> None:
        partner = self._partners.get(str(message["shadow"]))
        if partner is not None:
            self._end(partner, "told to")

    def _begin(self, link: DataPath, message: Mapping[str, Any]) -> None:
        """Begin to work with a Shadow, as the message specifies."""
        if self._layers is None:
            self._layers = read_layers(self._layers_file, self._sha256)
        pair = Pair(int(message["shadow_cores"]), _numbers(message["blocks"]), _numbers(message["split"]))
        expected_ms = tuple(tuple(float(time_ms) for time_ms in row) for row in message.get("expected_ms", ()))
        partner = Partner(str(message["shadow"]), pair, link, Predictions(expected_ms), self._layers)
        self._rebuild_split(partner)
        self._partners[partner.shadow] = partner

    def _rebuild_split(self, newest: Partner | None) -> None:
        """Cut the program at the blocks of this Shadow. Other Shadows take part in the runs that they hold as well."""
        if newest is None:
            self._split = None
            return
        assert self._layers is not None
        partners = {**self._partners, newest.shadow: newest}.values()
        self._split = SplitModel(self._model, self._layers, partners, newest.pair.blocks)

    def _say(self, answer: str, **details: Any) -> None:
        if self._orders is not None:
            self._orders.say(answer, **details)

    def _watch(self, descriptor: int) -> None:
        if descriptor not in self._watched:
            self._watched.add(descriptor)
            self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        self._watched.discard(descriptor)
        self._poll.unregister(descriptor)


def left_s(budget_s: float, started_s: float) -> float | None:
    """The time left until a batch's deadline; None where the gateway set none."""
    return budget_s - (time.monotonic() - started_s) if budget_s > 0 else None


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
