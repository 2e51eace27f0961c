"""The lifecycle of one instance on this machine, from its order to its end.

    create ▶ (zygote warm) ▶ ordered ▶ forked: a pid ▶ HELLO: ready ▶ STOP, SIGTERM, SIGKILL ▶ gone

HELLO may arrive before the supervisor's report of the pid. The instance is ready when both are there: until then the node's
coordinator does not know the instance, which could have no Shadow.

Each step has a bound in time, and an instance ends exactly once, with a reason that holds the last lines of its log.

Standard output and error of an instance arrive by a pipe (`LogPipe`). The loop reads the pipe in small portions, so that a
function which prints without end delays no other one. Lines are cut at a length, and beyond a rate they are counted instead of
passed on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gnomon_core import packets
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import PlatformListener
from gnomon_core.launch import Order
from gnomon_core.pairs import Pair
from gnomon_platforms.local import cgroups as usage
from gnomon_platforms.local.channel import UnixChannel, channel_pair

STOP_S = 5.0
"""Seconds that an instance may take to finish after STOP before it gets SIGTERM."""
TERM_S = 2.0
LOST_S = 1.0
"""Seconds that a process may outlive its channel before it is killed."""
MAX_ORDERS = 10
"""The most orders of an instance whose zygote or supervisor ends before it is ready."""


@dataclass(frozen=True, slots=True)
class InstanceContext:
    """Dependencies of an instance: the supervisor, the listener, the clock, and the callback that cleans up."""

    send: Callable[..., None]
    listener: PlatformListener
    now_s: Callable[[], float]
    ended: Callable[[LocalProcess, float], None]
    """Called once, with the CPU seconds that it has used, before the listener is notified."""


class LocalProcess(ABC):
    """The common part of a Body and a Shadow of this machine: a state, a log, a timer, and exactly one end.

    `instance` is its present state as reported by the platform; `gone` is done when the process has ended or will never begin.
    """

    def __init__(self, instance: Instance, key: FunctionKey, environment: str, context: InstanceContext) -> None:
        self.instance = instance
        self.key = key
        self.environment = environment
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.channel: UnixChannel | None = None
        self.pid: int | None = None
        self._context = context
        self.log: LogPipe | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason = ""
        self._stopping = False

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return 0.0 if self.pid is None else usage.cpu_s(self.pid)

    @abstractmethod
    def forked(self, pid: int) -> None:
        """Record the pid of the new process."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the process. Idempotent."""

    def end(self, cpu_s: float, reason: str) -> None:
        """Record that the process has ended or never started. Notifies the listener, once."""
        if self.gone.done():
            return
        # A HELLO may still be unread in the channel; from here on it is ignored.
        self._stopping = True
        self._cancel_timer()
        if self.channel is not None:
            self.channel.close()
        log_tail = ""
        if self.log is not None:
            self.log.close()
            # Lines of only `^` and `~` mark a column in a traceback; alone they say nothing.
            log_tail = " | ".join(line.strip() for line in self.log.last if line.strip(" ^~"))
        failed = self._reason != "stopped"
        self.instance = replace(self.instance, state=InstanceState.GONE)
        self._context.ended(self, cpu_s)
        self.gone.set_result(None)
        text = f"{self._reason}: {reason}" if self._reason and reason else self._reason or reason
        self._context.listener.instance_gone(
            self.instance.id, f"{text}; its log ends: {log_tail}" if failed and log_tail else text
        )

    def _open_log(self) -> int:
        """Begin to read a new log. Returns the end of the pipe that the process writes to."""
        log_read, log_write = os.pipe()
        context = self._context
        self.log = LogPipe(log_read, partial(context.listener.log_line, self.key, self.instance.id), context.now_s)
        return log_write

    def _cancel_timer(self) -> None:
        # A cancelled timer still references its callback, and thereby this object.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, act)


class LocalInstance(LocalProcess):
    """A Body on this machine, or any other instance that takes requests."""

    def __init__(self, instance: Instance, key: FunctionKey, environment: str, context: InstanceContext) -> None:
        super().__init__(instance, key, environment, context)
        self._hello_received = False
        self._withdrawn = 0

    @classmethod
    def promoted(cls, shadow: LocalProcess, context: InstanceContext) -> LocalInstance:
        """The record of a Shadow that has become a Body, from its first message as one. It takes over the Shadow's state."""
        assert shadow.channel is not None
        body = cls(replace(shadow.instance, state=InstanceState.READY), shadow.key, shadow.environment, context)
        body.gone, body.pid, body.channel, body.log = shadow.gone, shadow.pid, shadow.channel, shadow.log
        body.channel.report_to(body._channel_lost)
        return body

    def order(self, order: Order, join: list[str], timeout_s: float, *, coordinated: bool = False) -> None:
        """Ask the zygote to fork the instance. HELLO must arrive within `timeout_s`. If `coordinated`, it can have a Shadow."""
        ours, theirs = channel_pair()
        self.channel = UnixChannel(ours, self._hello, self._channel_lost)
        descriptors = [packets.sealed_file("order", order.to_json().encode()), theirs.detach(), self._open_log()]
        message: dict[str, Any] = {"do": "create", "id": self.instance.id, "zygote": self.environment, "join": join}
        if coordinated:
            message["coordinated"] = "body"
        self._context.send(message, descriptors)
        self._after(timeout_s, lambda: self._start_timed_out(timeout_s))

    def forked(self, pid: int) -> None:
        """Record the pid of the new process."""
        self.pid = pid
        if self._stopping:
            self.signal(signal.SIGKILL)
        # HELLO comes over the channel, the pid from the supervisor: either may be first.
        elif self._hello_received:
            self._begin_to_serve()

    def withdraw(self) -> bool:
        """Reset a starting instance whose zygote or supervisor has ended. Returns whether it may be ordered again."""
        starting = self.instance.state is InstanceState.STARTING and not self._stopping
        if not starting or self._withdrawn >= MAX_ORDERS - 1:
            return False
        self._withdrawn += 1
        self.pid = None
        self._cancel_timer()
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.report_to(lambda _: None)
            channel.close()
        if self.log is not None:
            self.log.close()
            self.log = None
        self._hello_received = False
        return True

    def stop(self) -> None:
        """Stop the instance: STOP, then SIGTERM, then SIGKILL. Idempotent."""
        if self._stopping or self.gone.done():
            return
        self._stopping = True
        was_ready = self.instance.state is InstanceState.READY
        self.instance = replace(self.instance, state=InstanceState.DRAINING)
        self._reason = self._reason or "stopped"
        if self.channel is None:
            self.end(0.0, "stopped before it began")
        elif was_ready:
            self.channel.stop()
            self._after(STOP_S, self._terminate)
        else:
            self.kill(self._reason)

    def kill(self, reason: str) -> None:
        """Kill the instance at once."""
        self._reason = self._reason or reason
        self._stopping = True
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send the process a signal. Before the process exists, `forked` ends it instead."""
        self._context.send({"do": "kill", "id": self.instance.id, "signal": number})

    def resized(self, cores: int, cpus: tuple[int, ...], idle_cores: int | None) -> None:
        """Change the CPUs of the instance; with `idle_cores` it borrows the others for each batch."""
        self.instance = replace(self.instance, cores=cores, idle_cores=idle_cores)
        if self.channel is not None and self.instance.state is InstanceState.READY:
            self.channel.resize(cores, cpus)

    def set_pair(self, shadow_id: str, pair: Pair | None) -> None:
        """Set the pair of a Body's Shadow; None without one. Notifies the listener if that is a change."""
        shadows = self.instance.shadows
        if pair is None:
            shadows.pop(shadow_id, None)
        else:
            shadows[shadow_id] = pair
        if shadows != self.instance.shadows:
            self.instance = self.instance.working_with(shadows)
            self._context.listener.pair_changed(self.instance)

    def _hello(self, head: dict[str, Any]) -> None:
        if self._stopping or self.instance.state is not InstanceState.STARTING:
            return
        del head
        self._hello_received = True
        if self.pid is not None:
            self._begin_to_serve()

    def _begin_to_serve(self) -> None:
        self._cancel_timer()
        assert self.channel is not None
        self.instance = replace(self.instance, state=InstanceState.READY, concurrency=self.channel.concurrency)
        self._context.listener.instance_ready(self.instance, self.channel)

    def _channel_lost(self, reason: str) -> None:
        # An exiting process closes its channel just before the supervisor reports its exit status, which says more: wait.
        if not self._stopping and not self.gone.done():
            self._after(LOST_S, lambda: self.kill(reason))

    def _start_timed_out(self, timeout_s: float) -> None:
        self.kill(f"not ready after {timeout_s:g} s")

    def _terminate(self) -> None:
        self.signal(signal.SIGTERM)
        self._after(TERM_S, lambda: self.signal(signal.SIGKILL))


def describe_exit(status: int | None, *, out_of_memory: bool) -> str:
    """A wait status in words."""
    if out_of_memory:
        return "the kernel ended it because it passed its memory limit"
    if status is None:
        return ""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"ended by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"
    return f"exit status {os.WEXITSTATUS(status)}"


READ_BYTES = 64 * 1024
MAX_LINE_BYTES = 16 * 1024
LINES_PER_S = 1000
BURST_LINES = 2000
KEPT_LINES = 5
"""The number of last log lines that are kept: they say why an instance has ended."""


class LogPipe:
    """The reading end of an instance's log."""

    def __init__(self, descriptor: int, on_line: Callable[[str], None], now_s: Callable[[], float]) -> None:
        self._fd = descriptor
        self._on_line = on_line
        self._now_s = now_s
        self._loop = asyncio.get_running_loop()
        self._partial_line = b""
        self._open = True
        self._tokens = float(BURST_LINES)
        self._refilled_s = now_s()
        self._dropped_lines = 0
        self.last: deque[str] = deque(maxlen=KEPT_LINES)
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._readable)

    def close(self) -> None:
        """Read what has been written so far and release the pipe."""
        # Bounded, because a child process that inherited the pipe may go on writing.
        for _ in range(64):
            if not self._open:
                return
            if not self._readable():
                break
        self._end()

    def _readable(self) -> bool:
        """Read one portion. Returns whether there may be more."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._emit(line)
        if len(self._partial_line) > MAX_LINE_BYTES:
            self._emit(self._partial_line)
            self._partial_line = b""
        return True

    def _emit(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
        self.last.append(text)
        now_s = self._now_s()
        self._tokens = min(BURST_LINES, self._tokens + (now_s - self._refilled_s) * LINES_PER_S)
        self._refilled_s = now_s
        if self._tokens < 1:
            self._dropped_lines += 1
            return
        self._tokens -= 1
        if self._dropped_lines:
            self._on_line(f"… {self._dropped_lines} lines left out: more than {LINES_PER_S} a second …")
            self._dropped_lines = 0
        self._on_line(text)

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            if self._partial_line:
                self._emit(self._partial_line)
                self._partial_line = b""
            # No more lines are passed on; drop the reference, so that the listener need not outlive the instance.
            self._on_line = _ignore


def _ignore(_: str) -> None:
    """Drop events that follow the instance's end."""
