"""Shadows on this node, for the platform: claims, requests to the coordinator, and its events.

create_shadow ▶ claim cores and memory ▶ request ▶ coordinator ▶ registered ▶ paired ▶ `pair_changed(Body with its Shadow)`
a Shadow's end, whatever its cause ▶ `pair_changed(Body alone)` ▶ `instance_gone(Shadow)`

A Shadow is an instance like any other: pinned, limited, in its function's sandbox, counted in its usage. Its lifecycle is the
coordinator's, because it begins as a pool container without a function.

The lifecycle of one Shadow, from the request to its end.

    create ▶ the coordinator is told ▶ born: a pid ▶ registered: ready ▶ paired … ▶ destroy: unpaired, stopped ▶ gone
                                                          promote ▶ complete, unpaired ▶ HELLO: a Body, in `lives`

Requests to the coordinator can be repeated to its successor: the platform keeps the request and files (the order
and the log's pipe) until the Shadow has registered; those of a promotion until it is a Body. From the promotion on, it is
reported as the Body that it will be.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gnomon_core import packets
from gnomon_core.blocks import Layers
from gnomon_core.coordinator_client import CoordinatorClient
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.launch import Order
from gnomon_core.pairs import MAX_SHADOWS, Pair, predicted_ms
from gnomon_core.profiles import ModelProfile
from gnomon_platforms.common import claimed_cores, requested_cores, shadow_bytes
from gnomon_platforms.local import cgroups as usage
from gnomon_platforms.local.channel import UnixChannel, channel_pair
from gnomon_platforms.local.instances import InstanceContext, LocalInstance, LogPipe, PromotedShadow
from gnomon_platforms.local.nodes import LocalNode
from gnomon_platforms.local.recipes import ContainerPool, Recipe, Recipes, joining, shadow_order
from gnomon_platforms.local.supervision import BASE_ENVIRONMENT, TORCH
from gnomon_platforms.profile_files import LayerFiles

STOP_S = 9.0
"""Seconds for the coordinator to end a Shadow: its Body may be executing a batch, and disconnects first."""


class LocalShadow:
    """A Shadow on this machine. `instance` is its present state as reported by the platform; `ask` reaches the coordinator."""

    def __init__(
        self,
        instance: Instance,
        key: FunctionKey,
        environment: str,
        context: InstanceContext,
        ask: Callable[..., None],
    ) -> None:
        self.instance = instance
        self.key = key
        self.environment = environment
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pid: int | None = None
        self.wish: dict[str, Any] = {}
        self._context = context
        self._ask = ask
        self.body_id = instance.partner or ""
        self._channel: UnixChannel | None = None
        """The channel of the Body that it becomes."""
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
        """Request the Shadow. Takes ownership of the order, an anonymous file."""
        log_read, log_write = os.pipe()
        context = self._context
        self._log = LogPipe(log_read, partial(context.listener.log_line, self.key, self.instance.id), context.now_s)
        self._papers = (order, log_write)
        self.wish = dict(wish)
        self._ask(self.wish, self._papers)
        self._after(timeout_s, lambda: self.kill(f"not ready after {timeout_s:g} s"))

    def ask_again(self) -> None:
        """Repeat the pending request to a new coordinator, which may not know this Shadow."""
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
        """Mark the Shadow READY: it has loaded its blocks."""
        self._drop_order()
        if self._stopping or self.rises or self.instance.state is not InstanceState.STARTING:
            return
        self._cancel_timer()
        self.instance = replace(self.instance, state=InstanceState.READY)

    def change(self, pair: Pair, cpus: tuple[int, ...], memory_bytes: int, expected_ms: list[list[float]]) -> None:
        """Change the Shadow's cores, CPUs, blocks and split."""
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
        """Set the pair by which the Shadow works with its Body from now on."""
        if not self.rises:
            self.instance = replace(self.instance, pair=pair)

    @property
    def rises(self) -> bool:
        """Whether the Shadow is being promoted to a Body."""
        return self._channel is not None

    def promote(self, order: Order, memory_bytes: int, timeout_s: float, risen: Callable[[], None]) -> None:
        """Promote it to the Body of this order; `risen` is called at its first message as one."""
        ours, theirs = channel_pair()
        self._channel = UnixChannel(ours, lambda _: None if self._stopping else risen(), self._channel_lost)
        self._rising = (packets.sealed_file("order", order.to_json().encode()), theirs.detach())
        self.instance = replace(
            self.instance,
            kind=InstanceKind.BODY,
            state=InstanceState.STARTING,
            cores=order.launch.cores,
            memory_bytes=memory_bytes,
            started_s=self._context.now_s(),
            partner=None,
            pair=None,
        )
        self._ask({"do": "promote", "shadow": self.instance.id}, self._rising)
        self._after(timeout_s, lambda: self.kill(f"not a Body after {timeout_s:g} s"))

    def leave(self) -> PromotedShadow:
        """Hand the state of this Shadow over to the Body that it has become."""
        assert self._channel is not None
        self._cancel_timer()
        self._drop_papers()
        return PromotedShadow(self.instance, self.key, self.environment, self.gone, self.pid, self._channel, self._log)

    def _channel_lost(self, reason: str) -> None:
        if not self._stopping and not self.gone.done():
            self.kill(reason)

    def stop(self) -> None:
        """Stop the Shadow: its Body disconnects first. Idempotent."""
        if self._stopping or self.gone.done():
            return
        self._begin_to_stop("stopped")
        if not self.wish:
            self.end(0.0, "stopped before it began")
            return
        self._ask({"do": "destroy", "shadow": self.instance.id})
        self._after(STOP_S, self._kill_now)

    def ending(self, reason: str) -> None:
        """Record that the coordinator ends the Shadow, requested or not."""
        if not self._stopping:
            self._begin_to_stop(reason)
            self._after(STOP_S, self._kill_now)

    def failed(self, reason: str) -> None:
        """Record that the coordinator has no process for it. The supervisor reports a process that has ended meanwhile."""
        if self.pid is None:
            self.end(0.0, reason)
        else:
            self._begin_to_stop(reason)
            self._kill_now()

    def kill(self, reason: str) -> None:
        """Kill the Shadow at once."""
        self._begin_to_stop(reason)
        self._kill_now()
        self._ask({"do": "destroy", "shadow": self.instance.id})

    def end(self, cpu_s: float, reason: str) -> None:
        """Record that the process has ended or never started. Notifies the listener, once."""
        if self.gone.done():
            return
        # Its HELLO as a Body may still be unread; now it is too late.
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
        self._context.ended(self, cpu_s)
        self.gone.set_result(None)
        text = f"{self._why}: {reason}" if self._why and reason else self._why or reason
        failed = self._why != "stopped"
        self._context.listener.instance_gone(self.instance.id, f"{text}; its log ends: {words}" if failed and words else text)

    def _begin_to_stop(self, reason: str) -> None:
        self._stopping = True
        self._why = self._why or reason
        if not self.gone.done():
            self.instance = replace(self.instance, state=InstanceState.DRAINING)

    def _kill_now(self) -> None:
        self._context.send({"do": "kill", "id": self.instance.id, "signal": int(signal.SIGKILL)})

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


Send = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Origin:
    """The request and recipe of a Body; its Shadows are made from the same."""

    request: InstanceRequest
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class ShadowContext:
    """Dependencies that Shadows share with other instances. `join` makes a memory group and returns its files."""

    node: LocalNode
    recipes: Recipes
    instances: InstanceContext
    join: Callable[[str, InstanceRequest], list[str]]
    bodies: Mapping[str, LocalInstance]
    origins: Mapping[str, Origin]
    profile: Callable[[Recipe], ModelProfile | None]
    """The present profile of a model, which may be newer than a Body of it."""
    start_timeout_s: float
    risen: Callable[[LocalInstance, Origin], None]
    """Takes a Shadow that has become a Body."""


class Pairs:
    """Every Shadow of this platform. `pool` empty containers are kept in reserve, more after bursts, as far as memory allows."""

    def __init__(self, send: Send, context: ShadowContext, pool: int) -> None:
        self._send = send
        self._context = context
        self._coordinator: CoordinatorClient | None = None
        self._layers = LayerFiles()
        self.lives: dict[str, LocalShadow] = {}
        self.pool = ContainerPool(self._ask, context.node, pool)

    # The coordinator

    def begin(self) -> None:
        """Start a coordinator, unless one is running."""
        if self._coordinator is None:
            self._coordinator = CoordinatorClient(self._send, self._heard, BASE_ENVIRONMENT)

    def lost(self) -> None:
        """Record the end of the supervisor, and with it of the coordinator and every Shadow."""
        self.pool.lost()
        self.close()
        for life in list(self.lives.values()):
            life.end(life.cpu_s, "the supervisor has ended")

    def close(self) -> None:
        """Release the socket to the coordinator."""
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def _ask(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        if self._coordinator is not None:
            self._coordinator.send(message, descriptors)

    # What is wished for

    async def create(self, body_id: str, pair: Pair, shadow_id: str) -> Instance:
        """Begin a Shadow for a ready Body.

        Raises:
            GnomonError: 503 `no_capacity`; 409 `no_such_body` where it has gone, has `MAX_SHADOWS`, or no layer blocks; 404
                `no_such_node` for another node than this one.

        """
        context, origin = self._context, self._context.origins.get(body_id)
        known = None if origin is None else await asyncio.to_thread(self._known, origin.recipe)
        body = context.bodies.get(body_id)
        if body is None or origin is None or known is None or not self._may_have_shadow(body):
            raise _no_such_body(f"It has gone, has {MAX_SHADOWS} Shadows already, or its model has no layer blocks.")
        layers, profile = known
        if pair.node not in (None, context.node.name):
            raise GnomonError(
                404, "no_such_node", f"There is no node {pair.node}.", f"This platform is {context.node.name} alone."
            )
        if not pair.blocks or max(pair.blocks) >= len(layers.blocks):
            raise _no_such_body(f"Its model has blocks 0 to {len(layers.blocks) - 1}, not {pair.blocks}.")
        memory_bytes = shadow_bytes(layers, pair, profile, origin.request.spec.settings.weight_mode)
        claim = context.node.claim(shadow_id, pair.shadow_cores, memory_bytes, pair.shadow_cores, from_reserve=True)
        instance = Instance(
            id=shadow_id,
            function=body.instance.function,
            version=body.instance.version,
            node=context.node.name,
            cores=pair.shadow_cores,
            memory_bytes=memory_bytes,
            state=InstanceState.STARTING,
            started_s=context.instances.now_s(),
            kind=InstanceKind.SHADOW,
            partner=body.instance.id,
            pair=pair,
        )
        life = self.lives[shadow_id] = LocalShadow(instance, body.key, body.environment, context.instances, self._ask)
        try:
            join = context.join(shadow_id, origin.request)
            request = replace(origin.request, cores=pair.shadow_cores)
            order = context.recipes.order(origin.recipe, request, shadow_id, claim.cpus, limited=bool(join))
            order, join = joining(shadow_order(order, body.instance.id), join)
            wish = {**_wish(instance, order.launch.options, claim.cpus, origin), "join": join}
            wish["expected_ms"] = predicted_ms(profile, pair)
            life.order(wish, packets.sealed_file("order", order.to_json().encode()), context.start_timeout_s)
            self.pool.fit()
        except OSError as error:
            life.end(0.0, f"could not be started: {error}")
        return life.instance

    def change(self, life: LocalShadow, pair: Pair) -> None:
        """Change a Shadow's blocks, split or cores.

        Raises:
            GnomonError: 503 `no_capacity`; the Shadow keeps what it has.

        """
        origin = None if life.rises else self._context.origins.get(life.body_id)
        known = None if origin is None else self._known(origin.recipe)
        if known is None or origin is None or not pair.blocks or max(pair.blocks) >= len(known[0].blocks):
            return
        layers, profile = known
        memory_bytes = shadow_bytes(layers, pair, profile, origin.request.spec.settings.weight_mode)
        claim = self._context.node.claim(life.instance.id, pair.shadow_cores, memory_bytes, pair.shadow_cores, from_reserve=True)
        life.change(pair, claim.cpus, memory_bytes, predicted_ms(profile, pair))
        self.pool.fit()

    def promote(self, shadow_id: str) -> Instance:
        """Promote a Shadow that works with its Body, and return the Body that it becomes.

        Raises:
            GnomonError: 503 `no_capacity`; it remains a Shadow. 409 `no_such_shadow` if the id is not of a Shadow.

        """
        context, life = self._context, self.lives.get(shadow_id)
        body = None if life is None else context.bodies.get(life.body_id)
        origin = None if life is None else context.origins.get(life.body_id)
        if life is None or body is None or origin is None or life.rises or life.instance.state is not InstanceState.READY:
            raise _no_such_shadow(shadow_id)
        cores = life.instance.cores
        request = replace(origin.request, cores=cores)
        memory_bytes = origin.recipe.memory_bytes
        held = requested_cores(request.spec) is not None
        claim = context.node.claim(shadow_id, claimed_cores(request.spec, cores), memory_bytes, cores, held=held)
        # Its control group limits its memory, as for every instance of the function.
        order = context.recipes.order(origin.recipe, request, shadow_id, claim.cpus, limited=True)
        whole = replace(origin, request=request)
        life.promote(order, memory_bytes, context.start_timeout_s, lambda: self._risen(life, whole))
        self.pool.fit()
        return life.instance

    def _risen(self, life: LocalShadow, origin: Origin) -> None:
        """Register a promoted Shadow as a Body after its first message as one."""
        self._tell_body(life, None)
        del self.lives[life.instance.id]
        self._context.risen(LocalInstance.risen(life.leave(), self._context.instances), origin)

    def _may_have_shadow(self, body: LocalInstance) -> bool:
        has = sum(life.instance.partner == body.instance.id for life in self.lives.values())
        return body.instance.state is InstanceState.READY and has < MAX_SHADOWS

    def _known(self, recipe: Recipe) -> tuple[Layers, ModelProfile | None] | None:
        """The blocks of the recipe's model, and its profile; None without blocks."""
        layers = self._layers.of(recipe.options)
        return None if layers is None else (layers, self._context.profile(recipe))

    def body_gone(self, body_id: str) -> None:
        """Kill the Shadows of a Body that has ended, except those in promotion. The coordinator, if it is up, does the same."""
        for life in list(self.lives.values()):
            if life.body_id == body_id and not life.rises:
                life.kill("its Body has gone")

    # What the coordinator tells

    def _heard(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "pool":
            self.pool.keeps(int(event["containers"]))
            return
        if kind == "ready":
            self.pool.tell()
            for each in list(self.lives.values()):
                each.ask_again()
            return
        life = self.lives.get(event.get("shadow", ""))
        if life is None:
            return
        if kind == "registered":
            life.registered()
        elif kind == "paired":
            pair = Pair(life.instance.cores, tuple(event["blocks"]), tuple(event["split"]))
            life.works(pair)
            self._tell_body(life, pair)
        elif kind == "unpaired":
            self._tell_body(life, None)
        elif kind == "ending":
            life.ending(str(event["reason"]))
        elif kind == "failed":
            life.failed(str(event["reason"]))

    def apart(self, life: LocalShadow) -> None:
        """Report a Body without this ended Shadow, if that was not reported before."""
        self._tell_body(life, None)

    def _tell_body(self, life: LocalShadow, pair: Pair | None) -> None:
        body = self._context.bodies.get(life.body_id)
        if body is not None and not body.gone.done():
            body.works_with(life.instance.id, pair)


def _wish(instance: Instance, options: Mapping[str, Any], cpus: tuple[int, ...], origin: Origin) -> dict[str, Any]:
    assert instance.pair is not None
    pair = instance.pair
    return {
        "do": "create",
        "zygote": TORCH.id,
        "shadow": instance.id,
        "body": instance.partner,
        **{name: options[name] for name in ("program", "weights", "layers", "weight_mode")},
        "cores": pair.shadow_cores,
        "cpus": list(cpus),
        "blocks": list(pair.blocks),
        "split": list(pair.split),
        "max_batch": max(origin.request.spec.settings.max_batch, len(pair.split)),
    }


def _no_such_shadow(shadow_id: str) -> GnomonError:
    return GnomonError(
        409,
        "no_such_shadow",
        f"{shadow_id} cannot become a Body: it is no Shadow that works with one, or becomes a Body already.",
        "Decide again from the present instances.",
    )


def _no_such_body(why: str) -> GnomonError:
    return GnomonError(
        409, "no_such_body", f"The Body cannot have this Shadow. {why}", "Decide again from the present instances."
    )
