"""The Shadows of this node, from a wish to its end: what is told to the coordinator, and what it makes of it.

    wished for ▶ STARTING ─ registered ▶ READY ─ paired, unpaired … ▶ ENDING ▶ GONE, with the reason
                                            the platform has seen that it is gone ▶ forgotten

Where the Body is on another node, the platform is told a token with which it comes to its Shadow (`arrivals`). On the Body's node
the same Shadow is a wish with the way there, and no process.

A wish is kept until its Shadow has gone, and said again to each new coordinator, as on one machine. What was wished for is told
with what is: another leader than the one that has asked for a Shadow goes on with it.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from gnomon_coordinator.node.bodies import Bodies
from gnomon_coordinator.node.pool import Cpus, Pool
from gnomon_coordinator.node.wishes import Wish
from gnomon_coordinator.server import close
from gnomon_core import packets
from gnomon_core.errors import GnomonError

MAX_GONE = 200
"""Shadows that have gone are remembered until the platform has heard of it, the newest ones at most."""
_LOG = logging.getLogger("gnomon.node")


class State(StrEnum):
    """Where a Shadow is in its life."""

    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    GONE = "gone"


@dataclass(slots=True)
class Shadow:
    """One. `body` is its Body's name among the instances of the node."""

    wish: Wish
    body: str
    cpus: tuple[int, ...]
    papers: tuple[int, ...] = ()
    """Its order and its log, until it has registered."""
    state: State = State.STARTING
    reason: str = ""
    paired: bool = False
    blocks: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    details: dict[str, float] = field(default_factory=dict)
    token: str = field(default="", repr=False)
    """What its Body shows, where that comes from another node."""

    def row(self) -> dict[str, Any]:
        """For the platform."""
        return {
            "id": self.wish.shadow,
            "pod_uid": self.wish.pod_uid,
            "state": self.state,
            "reason": self.reason,
            "cores": self.wish.what.cores,
            "paired": self.paired,
            "blocks": list(self.blocks),
            "split": list(self.split),
            "wished": {"blocks": list(self.wish.what.blocks), "split": list(self.wish.what.split)},
            "memory_bytes": self.wish.memory_bytes,
            "afar": self.wish.afar,
            "elsewhere": self.wish.way is not None,
            "token": self.token,
            **self.details,
        }


class Shadows:
    """All of them. `models` is where the pool has the model repository; `changed` is called when the platform has news."""

    def __init__(self, pool: Pool, bodies: Bodies, cpus: Cpus, models: Path, changed: Callable[[], None]) -> None:
        self._pool = pool
        self._bodies = bodies
        self._cpus = cpus
        self._models = models
        self._changed = changed
        self._shadows: dict[str, Shadow] = {}

    def rows(self) -> list[dict[str, Any]]:
        return [shadow.row() for shadow in self._shadows.values()]

    # Wishes

    def create(self, wish: Wish) -> Shadow:
        """Begin a Shadow. One that is there already is left as it is: then the same wish has come twice.

        Raises:
            GnomonError: 409 `no_such_body`, 409 `shadow_exists`, 503 `no_pool`, 503 `no_capacity`.

        """
        known = self._shadows.get(wish.shadow)
        if known is not None:
            if known.wish.pod_uid != wish.pod_uid or known.state is State.GONE:
                raise GnomonError(409, "shadow_exists", f"{wish.shadow} is another Shadow's name here.", "Choose another.")
            return known
        body = self._body_of(wish)
        if not self._pool.coordinated or not (self._pool.warm or wish.way is not None):
            raise GnomonError(503, "no_pool", "This node's pool is not ready.", "Try again in a moment.")
        shadow = Shadow(wish, body, ()) if wish.way is not None else self._begun(wish, body)
        self._shadows[wish.shadow] = shadow
        self._ask_for(shadow)
        self._changed()
        return shadow

    def _body_of(self, wish: Wish) -> str:
        """The Body's name among the instances of the node; of one on another node its pod's id, as everywhere."""
        if wish.afar:
            return wish.pod_uid
        pod = self._bodies.of_pod(wish.pod_uid)
        if pod is None:
            text = f"No Body of pod {wish.pod_uid} has come to this node's coordinator."
            raise GnomonError(409, "no_such_body", text, "Its pod needs the volume of driver node.gnomon, and a Body in it.")
        return pod.instance

    def _begun(self, wish: Wish, body: str) -> Shadow:
        """One that is made here, with its CPUs and its papers."""
        cpus = self._cpus_for(wish)
        papers: list[int] = []
        try:
            papers.append(packets.sealed_file("order", wish.order(body, cpus, self._models).to_json().encode()))
            papers.append(os.dup(sys.stderr.fileno()))
        except OSError as error:
            close(papers)
            self._cpus.release(wish.shadow)
            text = f"Nothing can be made on this node now: {error}."
            raise GnomonError(503, "no_capacity", text, "Try again in a moment.") from error
        return Shadow(wish, body, cpus, tuple(papers), token=secrets.token_urlsafe() if wish.afar else "")

    def _cpus_for(self, wish: Wish) -> tuple[int, ...]:
        """So many CPUs as are wished for, in place of those that it has."""
        if wish.what.cores > len(self._cpus):
            raise GnomonError(503, "no_capacity", f"This node has {len(self._cpus)} CPUs.", "Ask for fewer cores.")
        return self._cpus.claim(wish.shadow, wish.what.cores)

    def change(self, shadow_id: str, document: Mapping[str, Any]) -> None:
        """Let a Shadow do something else. Unknown ones are ignored: they have ended.

        Raises:
            BadMessageError: that is nothing to do.
            GnomonError: 503 `no_capacity`; it does what it did.

        """
        shadow = self._living(shadow_id)
        if shadow is None:
            return
        wish = shadow.wish.changed(document)
        if wish.way is None:
            shadow.cpus = self._cpus_for(wish)
        shadow.wish = wish
        self._pool.ask({"do": "change", "shadow": shadow_id, **shadow.wish.task(shadow.cpus)})
        self._changed()

    def destroy(self, shadow_id: str) -> None:
        """End a Shadow, or forget one that has gone. Unknown ones are ignored."""
        shadow = self._living(shadow_id)
        if shadow is None:
            self._shadows.pop(shadow_id, None)
            return
        shadow.state, shadow.reason = State.ENDING, shadow.reason or "stopped"
        self._pool.ask({"do": "destroy", "shadow": shadow_id})
        self._changed()

    # Bodies of other nodes

    def of_token(self, token: str) -> Shadow | None:
        """The Shadow whose Body shows this."""
        living = [shadow for shadow in self._shadows.values() if shadow.token and shadow.state is State.READY]
        shown = token.encode("utf-8", "surrogateescape")
        return next((one for one in living if hmac.compare_digest(one.token.encode(), shown)), None)

    def reached(self, shadow: Shadow, connection: int) -> None:
        """Its Body has come over this connection, which is copied."""
        self._pool.ask({"do": "join", "shadow": shadow.wish.shadow}, [connection])

    # What becomes of them

    def said(self, event: Mapping[str, Any]) -> None:
        """The coordinator says something."""
        if event["event"] == "ready":
            for shadow in self._shadows.values():
                self._ask_again(shadow)
            return
        known = self._living(str(event.get("shadow", "")))
        if known is not None:
            self._told(known, event)
            self._changed()

    def _told(self, shadow: Shadow, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "registered":
            _drop_papers(shadow)
            shadow.details = {"resident_bytes": event["resident_bytes"], "load_ms": event["load_ms"]}
            if shadow.state is State.STARTING:
                shadow.state = State.READY
        elif kind == "paired":
            shadow.paired, shadow.blocks, shadow.split = True, tuple(event["blocks"]), tuple(event["split"])
            if shadow.state is State.STARTING:
                # One on another node registers there.
                shadow.state = State.READY
        elif kind == "unpaired":
            shadow.paired = False
        elif kind == "ending":
            shadow.state, shadow.reason = State.ENDING, shadow.reason or str(event["reason"])
        elif kind == "failed":
            self._end(shadow, str(event["reason"]))

    def ended(self, instance: str, reason: str) -> None:
        """A process of the pool has ended."""
        shadow = self._living(instance)
        if shadow is not None:
            self._end(shadow, reason)
            self._changed()

    def lost(self) -> None:
        """The pool has ended, and with it every Shadow."""
        for shadow in self._shadows.values():
            if shadow.state is not State.GONE:
                self._end(shadow, "the node's pool has ended")
        self._changed()

    def _end(self, shadow: Shadow, reason: str) -> None:
        _drop_papers(shadow)
        self._cpus.release(shadow.wish.shadow)
        shadow.state, shadow.paired = State.GONE, False
        shadow.reason = shadow.reason or reason
        _LOG.info("Shadow %s has gone: %s", shadow.wish.shadow, shadow.reason)
        gone = [name for name, other in self._shadows.items() if other.state is State.GONE]
        for name in gone[:-MAX_GONE]:
            del self._shadows[name]

    def _ask_again(self, shadow: Shadow) -> None:
        """A new coordinator knows of no wish."""
        if shadow.state is State.ENDING:
            self._pool.ask({"do": "destroy", "shadow": shadow.wish.shadow})
        elif shadow.state is not State.GONE:
            self._ask_for(shadow)

    def _ask_for(self, shadow: Shadow) -> None:
        self._pool.ask(shadow.wish.create(shadow.body, shadow.cpus, self._models), shadow.papers)

    def _living(self, shadow_id: str) -> Shadow | None:
        found = self._shadows.get(shadow_id)
        return None if found is None or found.state is State.GONE else found


def _drop_papers(shadow: Shadow) -> None:
    papers, shadow.papers = shadow.papers, ()
    close(papers)
