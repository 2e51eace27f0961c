"""Leader election with a Lease: one process at a time writes, and a process that has lost the Lease ends before it can write.

A Kubernetes Lease is no fence by itself: a leader that was frozen for a minute continues in the middle of a write. Therefore

 - right before each write is sent, the remaining time is checked on the boot-time clock, which also runs during suspend;
 - when that time is over, the process exits at once and without cleaning up (`gone`): it can write nothing afterwards, nor renew
   the Lease and so delay its successor;
 - every write carries the resourceVersion that it was decided from (`writes`), so that a write in flight is refused if a newer
   leader has changed the object;
 - coordinators, Bodies and gateways refuse messages of an older epoch: the epoch is the fencing token.

`LeaseRecord` and `Observer` are the election's rules as values, without a clock and without a cluster.

A candidate takes a Lease that has no holder, or whose holder has not renewed it for the Lease's duration. Each candidate
measures that time itself, from when it saw the last renewal: the times in a Lease are for people, because clocks differ.

A leader may write until `renew_deadline_s` after it *sent* its last successful renewal. Candidates count from when they saw
that renewal, which is later, and wait longer. They look again when that time is over. With the defaults:

    sent 0 s ─ written 0.1 s ─ seen by others 2.0 s ─ the leader writes nothing from 10 s on ─ others may take it from 17 s on

The epoch is `leaseTransitions` + 1, so every leader has its own, and a later leader a larger one. A Lease that was deleted and
created again, by a new installation, has lost that count. If others remember earlier epochs, as nodes do, the count starts at a
number that grows with time (`seconds_to_count_from`), faster than any count:

    made in the second 200,000,000, led three times ─ epochs up to 200,000,003 ─ removed ─ made 60 s later ─ epoch 200,000,061

A deleted Lease counts as held until it would have expired, also for its holder: a process that has seen it creates it again only
then. If it was deleted with its installation, those processes have ended by that time, and no Lease is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from gnomon_core.clock import Clock, rfc3339, utc_now_s
from gnomon_core.errors import GnomonError, bad_request
from gnomon_platforms.kubernetes.client import Api, Document, Fence, Refused, Unreachable
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Create, Replace, Target, Write, Writer

ADDRESS_ANNOTATION = "gnomon/address"
"""Annotation of the Lease with the address at which the other gateways reach the leader."""
YEAR_2020_S = 1_577_836_800
"""The beginning of 2020 in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The duration of a Lease, how long its holder may write without a renewal, and the period of renewals and looks."""

    duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0.0 < self.retry_s < self.renew_deadline_s < self.duration_s:
            raise bad_request(
                "lease_timing",
                f"Lease duration {self.duration_s} s, renew deadline {self.renew_deadline_s:g} s, retry {self.retry_s:g} s.",
                "Each must be shorter than the one before it.",
            )

    @property
    def answer_s(self) -> float:
        """How long a request may take. One that hangs, as if an API server's node has died, must leave time for another.

        With the defaults: renewed at 0 s, sent at 2 s, given up at 5 s, sent again at 7 s, in time until 10 s.
        """
        return 0.3 * self.renew_deadline_s


def seconds_to_count_from(since_1970_s: float) -> int:
    """The first count of a new Lease, larger than an earlier Lease's, if that changed hands less than once a second.

    A Lease counts in 32 bits, with a sign: seconds since 2020 fit until 2088.
    """
    return max(0, int(since_1970_s) - YEAR_2020_S)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The content of a Lease. `address` is its holder's, empty if unknown.

    `transitions` is -1 if the Lease never had a holder.
    """

    holder: str
    duration_s: float
    transitions: int
    resource_version: str
    address: str = ""

    @property
    def epoch(self) -> int:
        return self.transitions + 1


def lease_record(document: dict[str, Any]) -> LeaseRecord:
    """Read a Lease."""
    spec = document.get("spec") or {}
    transitions = spec.get("leaseTransitions")
    return LeaseRecord(
        str(spec.get("holderIdentity") or ""),
        float(spec.get("leaseDurationSeconds") or 0),
        -1 if transitions is None else int(transitions),
        str(document["metadata"].get("resourceVersion", "")),
        str((document["metadata"].get("annotations") or {}).get(ADDRESS_ANNOTATION, "")),
    )


class Observer:
    """The observations of a Lease by one process, with their times."""

    def __init__(self) -> None:
        self._record: LeaseRecord | None = None
        self._last: LeaseRecord | None = None
        self._changed_s = 0.0
        self._transitions = -1

    @property
    def record(self) -> LeaseRecord | None:
        """The Lease at the last observation; None if it did not exist."""
        return self._record

    def see(self, record: LeaseRecord | None, now_s: float) -> None:
        """Observe the Lease; None if it does not exist."""
        self._record = record
        if record is None:
            return
        if self._last is None or record.resource_version != self._last.resource_version:
            self._changed_s = now_s
        self._last = record
        self._transitions = max(self._transitions, record.transitions)

    @property
    def removed(self) -> bool:
        """True if the Lease existed and has been deleted."""
        return self._record is None and self._last is not None

    def left_s(self, identity: str, now_s: float) -> float:
        """Seconds until the Lease expires without a renewal; 0 if it has no holder, is ours, has expired or was never seen."""
        last = self._last
        if last is None or last.holder == "" or (last.holder == identity and not self.removed):
            return 0.0
        return max(0.0, self._changed_s + last.duration_s - now_s)

    def may_take(self, identity: str, now_s: float) -> bool:
        """True if the Lease can be taken now."""
        return self.left_s(identity, now_s) <= 0.0

    def transitions_if_taken(self, identity: str, counts_from: int = 0) -> int:
        """The `leaseTransitions` to write when taking the Lease. A deleted Lease's count continues from the last observation.

        A Lease that never had a holder starts at `counts_from`.
        """
        if self._transitions < 0:
            return counts_from
        record = self._record
        return self._transitions + (0 if record is not None and record.holder == identity else 1)


RELEASE_ATTEMPTS = 3
"""Attempts of an ending leader to release the Lease."""
EXIT_STATUS = 75
"""EX_TEMPFAIL: the kubelet or service manager restarts the process."""
LOOK_S = 0.5

_LOG = logging.getLogger(__name__)


def boot_time_s() -> float:
    """Seconds since boot, including suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def count_from_now() -> int:
    """The first count of a Lease that never had a holder: larger than any of an earlier Lease with its name."""
    return seconds_to_count_from(utc_now_s())


def identity_of_process() -> str:
    """A unique holder identity: the pod's or the machine's name, `_` and six random bytes, new for each process."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(6)}"


def end_process(reason: str) -> None:
    """Exit at once: no handler runs, no buffer is flushed, and no other thread can write any more."""
    os.write(2, f"gnomon: {reason}\n".encode())
    os._exit(EXIT_STATUS)


class Tenure:
    """The time for which this process may write. Thread-safe. `gone` is called when it is over, and is not meant to return."""

    def __init__(self, gone: Callable[[str], None] = end_process, boot_s: Callable[[], float] = boot_time_s) -> None:
        self._gone, self._boot_s = gone, boot_s
        self._until_s: float | None = None
        self.epoch = 0
        """The epoch of the present term; 0 before the first."""

    @property
    def leading(self) -> bool:
        """True if this process may write now."""
        return self._until_s is not None and self._boot_s() < self._until_s

    def extend(self, until_s: float, epoch: int) -> None:
        """Extend the tenure after a successful renewal."""
        self._until_s, self.epoch = until_s, epoch

    def end(self) -> None:
        """Give up leadership: writes are refused from now on, and the process need not exit."""
        self._until_s = None

    def check(self) -> None:
        """Return if this process may write now. Called in the sending thread, right before a write is sent.

        Raises:
            GnomonError: 503 `not_leading`.

        """
        self.watch()
        if not self.leading:
            raise GnomonError(
                503, "not_leading", "Another process holds the Lease.", "Send the request to the leader.", retry_after_s=1.0
            )

    def watch(self) -> None:
        """Call `gone` if the time is over."""
        until_s = self._until_s
        if until_s is not None and self._boot_s() >= until_s:
            self.lost("the Lease was not renewed in time")

    def lost(self, reason: str) -> None:
        """End the tenure and call `gone`."""
        self._until_s = None
        self._gone(f"{reason}; another process leads from now on")


class Watchdog(threading.Thread):
    """A thread that ends the process in time even if the event loop is blocked, or the whole process was frozen."""

    def __init__(self, tenure: Tenure, look_s: float = LOOK_S) -> None:
        super().__init__(name="tenure", daemon=True)
        self._tenure, self._look_s = tenure, look_s
        self._ended = threading.Event()

    def run(self) -> None:
        """Check the tenure twice a second."""
        while not self._ended.wait(self._look_s):
            self._tenure.watch()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()


class Leader:
    """A candidate for a Lease, and its holder once it has it.

    `identity` is unique to this process: a Lease that bears it is ours. `address` is where others reach us while we lead.
    `writer` sends renewals, which have a fence of their own; `tenure` is what they extend. `clock` only times pauses.
    `counts_from` is the first epoch of a Lease that never had a holder.
    """

    def __init__(
        self,
        writer: Writer,
        lease: Target,
        identity: str,
        tenure: Tenure,
        clock: Clock,
        *,
        address: str = "",
        timing: LeaseTiming | None = None,
        boot_s: Callable[[], float] = boot_time_s,
        counts_from: Callable[[], int] = lambda: 0,
    ) -> None:
        assert lease.resource is LEASES
        self._writer, self._lease, self.identity, self._tenure = writer, lease, identity, tenure
        self._clock, self._timing, self._boot_s = clock, timing or LeaseTiming(), boot_s
        self.address, self._counts_from = address, counts_from
        self._observer = Observer()
        self._held: Document | None = None
        self._leaving = False
        self.leading = asyncio.Event()
        """Set while this process leads."""

    @property
    def seen(self) -> LeaseRecord | None:
        """The Lease at the last look, with the leader's identity and address; None if it had no holder."""
        record = self._observer.record
        return record if record is not None and record.holder else None

    async def run(self) -> None:
        """Try to take the Lease, and renew it, until cancelled."""
        while True:
            await self.attempt()
            await self._clock.sleep(self._pause_s())

    def leave(self) -> None:
        """Prepare for the end: take no Lease any more, and stop leading if the Lease is deleted meanwhile."""
        self._leaving = True

    async def attempt(self) -> None:
        """Read the Lease, and take or renew it if possible."""
        self._tenure.watch()
        try:
            await self._attempt()
        except (Refused, Unreachable) as error:
            self._held = None
            if not (isinstance(error, Refused) and error.conflict):
                _LOG.warning("the Lease %s could not be read or renewed: %s", self._lease.name, error)
        except Exception:  # noqa: BLE001 - this task alone renews or takes the Lease
            self._held = None
            _LOG.exception("Internal error while renewing the Lease %s", self._lease.name)
        self._tenure.watch()

    async def release(self) -> None:
        """Release the Lease so that the next leader need not wait. The caller has ended all its other writes."""
        was_leading, lease = self._tenure.leading, self._held
        self._tenure.end()
        self.leading.clear()
        self._held = None
        # A cancelled renewal may still reach the API server. The first attempt then conflicts, and the second one reads first.
        for _ in range(RELEASE_ATTEMPTS if was_leading else 0):
            try:
                lease = lease or await self._writer.read(self._lease, timeout_s=self._timing.answer_s)
                if lease is None or lease_record(lease).holder != self.identity:
                    return
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                await self._writer.write(self._lease, Replace({**lease, "spec": spec}), lease, timeout_s=self._timing.answer_s)
            except Refused as refusal:
                if not refusal.conflict:
                    return
                lease = None
            except Unreachable:
                return
            else:
                return

    async def _attempt(self) -> None:
        # Renew from the last answer without reading: if the Lease has changed since, the write conflicts.
        current = self._held or await self._writer.read(self._lease, timeout_s=self._timing.answer_s)
        now_s = self._boot_s()
        record = None if current is None else lease_record(current)
        self._observer.see(record, now_s)
        if self._tenure.leading and record is not None and record.holder != self.identity:
            self._tenure.lost(f"{record.holder or 'no process'} holds the Lease")
            self.leading.clear()
        if self._leaving and (self._observer.removed or not self._tenure.leading):
            self._tenure.end()
            self.leading.clear()
            return
        if not self._observer.may_take(self.identity, now_s):
            return
        manifest = self._manifest(current)
        write: Write = Create(manifest) if current is None else Replace(manifest)
        fence, sent_s = self._in_time(), self._boot_s()
        self._held = await self._writer.write(self._lease, write, current, fence=fence, timeout_s=self._timing.answer_s)
        assert self._held is not None
        mine = lease_record(self._held)
        self._observer.see(mine, self._boot_s())
        self._tenure.extend(sent_s + self._timing.renew_deadline_s, mine.epoch)
        if not self.leading.is_set():
            _LOG.info("%s acquired the Lease, epoch %d", self.identity, mine.epoch)
            self.leading.set()

    def _pause_s(self) -> float:
        """Seconds until the next look: less than `retry_s` if the Lease expires before that."""
        left_s = self._observer.left_s(self.identity, self._boot_s())
        return min(left_s, self._timing.retry_s) if left_s > 0.0 else self._timing.retry_s

    def _in_time(self) -> Fence:
        """The fence of a write of the Lease: raises if the write comes too late to be of use.

        A process that was frozen between decision and sending must not send: the write would succeed if no other process holds
        the Lease, but this process's tenure would be over already, and the others would wait for the Lease's whole duration.
        """
        led, useless_s = self._tenure.leading, self._boot_s() + self._timing.renew_deadline_s

        def fence() -> None:
            self._tenure.watch()
            if self._boot_s() >= useless_s or (led and not self._tenure.leading):
                raise Unreachable("it was held up until it was of no use any more")

        return fence

    def _manifest(self, current: Document | None) -> Document:
        """The Lease with this process as its holder."""
        transitions = self._observer.transitions_if_taken(self.identity, self._counts_from())
        spec = dict((current or {}).get("spec") or {})
        if spec.get("holderIdentity") != self.identity:
            spec["acquireTime"] = _now()
        spec |= {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._timing.duration_s,
            "leaseTransitions": transitions,
            "renewTime": _now(),
        }
        metadata = (current or {}).get("metadata") or {"name": self._lease.name, "namespace": self._lease.namespace}
        annotations = {**(metadata.get("annotations") or {}), ADDRESS_ANNOTATION: self.address}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {**metadata, "annotations": annotations},
            "spec": spec,
        }


class Candidacy:
    """A candidate for a Lease with its tenure, its watchdog, and the task that takes and renews the Lease.

    `tenure.check` is the fence of everything that only the leader may write.
    """

    def __init__(
        self,
        api: Api,
        lease: Target,
        clock: Clock,
        rng: Random,
        *,
        counts_from: Callable[[], int] = lambda: 0,
        tenure: Tenure | None = None,
    ) -> None:
        self.tenure = tenure or Tenure()
        self.writer = Writer(api, clock, rng)
        self.leader = Leader(self.writer, lease, identity_of_process(), self.tenure, clock, counts_from=counts_from)
        self._watchdog = Watchdog(self.tenure)
        self._renewing: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """True if this process may write."""
        return self.tenure.leading

    @property
    def epoch(self) -> int:
        """The epoch of this process's term, at least 1."""
        return max(1, self.tenure.epoch)

    async def start(self, address: str = "") -> None:
        """Start election, with a first attempt before this returns. `address` is where others reach this process."""
        self.leader.address = address
        self._watchdog.start()
        await self.leader.attempt()
        self._renewing = asyncio.create_task(self.leader.run())

    async def stop(self) -> None:
        """End election and release the Lease. The caller has ended all its other writes."""
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
            await self.leader.release()
        self._watchdog.stop()
        self.writer.close()


def _now() -> str:
    """The present time in a Lease's format, for people to read."""
    return rfc3339(utc_now_s(), "microseconds")
