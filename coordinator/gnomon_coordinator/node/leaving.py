"""When an agent that was told to end may go: not before the pods that end at the same time.

A kubelet ends a pod with our volume by asking the driver to take the volume away. Where an installation is deleted as a whole
its functions' pods and their node's driver are told to end in the same second, and a driver that goes first leaves pods that
are `Terminating` for ever, and their namespaces with them. Nobody tells the agent why it is to end: it reads no API server. It
sees which pods have volumes, and which of them have a Body that has come:

    no volume                                          go
    a volume whose Body has gone, or never came        its pod ends, most likely: stay
    volumes whose Bodies are all there                 an update, or pods that drain: stay until nothing has changed for a while

and in any case no longer than the operator says, which is less than the pod's own grace.

Worked example, 50 s at most: three Bodies drain, one hangs up after 2 s and its volume goes after 3 s, the others after 41 s;
the agent goes with the last volume. In an update the three stay where they are, and it goes after 40 s.
"""

from __future__ import annotations

from collections.abc import Collection

SETTLED_S = 40.0
"""Without any change so long, pods are taken to stay. Knative lets a pod drain for half a minute before its Body hears of it."""


class Leaving:
    """Made when the agent is told to end, at `now_s`; it stays `longest_s` at most."""

    def __init__(self, now_s: float, longest_s: float, settled_s: float = SETTLED_S) -> None:
        self._until_s = now_s + longest_s
        self._settled_s = settled_s
        self._changed_s = now_s
        self._seen: tuple[frozenset[str], frozenset[str]] | None = None

    def may_go(self, now_s: float, volumes: Collection[str], bodies: Collection[str]) -> bool:
        """Whether it may go now. `volumes` are the uids of the pods that have one, `bodies` of those whose Body has come."""
        seen = frozenset(volumes), frozenset(bodies)
        if seen != self._seen:
            self._seen, self._changed_s = seen, now_s
        if not volumes or now_s >= self._until_s:
            return True
        return seen[0] <= seen[1] and now_s - self._changed_s >= self._settled_s
