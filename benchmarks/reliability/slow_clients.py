"""A good client's latency beside clients that are slow, endless or idle; and what slow readers hold.

    python -m benchmarks.reliability.slow_clients [--quick]

The good client asks a function that does nothing, one request after another on a connection that is kept, alone and beside the
others in turn: 20 that send header values without an end as fast as they are taken and come again when refused, 1,000 that send a
header line a second, 10,000 that have asked once and keep their connections. Then 50 clients ask for 20 MB each and read nothing:
the gateway's resident memory while they hold on, and after they have left.

All clients run on the same machine as the gateway. The attackers run in the background (SCHED_IDLE): they may send as fast as the
cores that nobody else wants allow, and do not keep the good client or the gateway from running, which attackers elsewhere could
not either. The floor shows what they cost all the same: they send to a second server of the same kind beside the gateway.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gnomon
from benchmarks.programs import Pace, start, step
from benchmarks.reliability import _clients as clients
from benchmarks.reliability._processes import processor_s, resident_bytes
from benchmarks.reliability.connections import BODY, PATH, port_of, serving
from benchmarks.report import Figure, measured, write
from gnomon_simulator.results import percentile

ENDLESS, SLOW, IDLE, READERS = 20, 1000, 10_000, 50
SETTLE_S = 1.0
HEAD = b"POST /function/noop HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MIB = 1 << 20
IDLE_OPEN_S = 30.0
"""Less than the 75 s after which the gateway closes a connection that does nothing, and the time to open all of them."""


class Attack(NamedTuple):
    """A number of clients of one kind, each of which begins with `head`."""

    name: str
    run: Callable[[int, bytes, int, float], int]
    head: bytes
    count: int


ENDLESS_HEADS = Attack("endless_headers", clients.endless_heads, HEAD + b"X-Endless: ", ENDLESS)
SLOW_HEADS = Attack("slow_senders", clients.slow_heads, HEAD, SLOW)


class Bench(NamedTuple):
    """The gateway, and processes for the good client and for the others."""

    ours: gnomon.Gnomon
    good: Callable[..., Any]
    others: Callable[..., Any]

    @property
    def port(self) -> int:
        return port_of(self.ours)

    def p99_ms(self, seconds: float) -> float:
        """The good client's 99th percentile."""
        latencies_s: list[float] = self.good(clients.well_behaved, self.port, clients.raw_request(PATH, BODY), seconds).result()
        return 1e3 * (percentile(sorted(latencies_s), 99) or 0.0)

    def gateway_s(self) -> float:
        """The gateway's processor time."""
        return processor_s(self.ours.program.process.pid)

    def gateway_mib(self) -> float:
        """The gateway's resident memory."""
        return resident_bytes(self.ours.program.process.pid) / MIB


def main(pace: Pace) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with (
        gnomon.temporary() as folder,
        gnomon.serving() as ours,
        serving(["-m", "benchmarks.reliability._server"], folder) as other_server,
        clients.processes(1) as good,
        clients.processes(1, clients.in_background) as others,
    ):
        ours.up("noop")
        bench = Bench(ours, good, others)
        seconds = 2.0 * pace.load_s
        figures = [
            *with_attack(bench, pace, seconds, ENDLESS_HEADS),
            *with_attack(bench, pace, seconds, ENDLESS_HEADS, other_server),
            *with_attack(bench, pace, seconds, SLOW_HEADS),
            *idle(bench, pace, IDLE_OPEN_S / 2 / pace.repeats),
        ]
        ours.up("large")
        figures += readers(bench)
    write("reliability_slow_clients", figures, repeats=pace.repeats, packages=("gnomon", "uvloop"), folder=pace.results)


def with_attack(bench: Bench, pace: Pace, seconds: float, attack: Attack, other_server: int | None = None) -> list[Figure]:
    """The good client alone and beside an attack, in turn, and what the gateway works meanwhile.

    With the port of another server the attack goes there, and the figure is the floor: it has no goal.
    """
    alone, under, work = [], [], [0.0, 0.0]
    name = attack.name if other_server is None else f"{attack.name} (to another server)"
    for _ in range(pace.repeats):
        begun_s = bench.gateway_s()
        alone.append(bench.p99_ms(seconds))
        work[0] += bench.gateway_s() - begun_s
        attacking = bench.others(attack.run, other_server or bench.port, attack.head, attack.count, seconds + 2 * SETTLE_S)
        time.sleep(SETTLE_S)
        begun_s = bench.gateway_s()
        under.append(bench.p99_ms(seconds))
        work[1] += bench.gateway_s() - begun_s
        said = f"p99 {alone[-1]:.1f} ms alone, {under[-1]:.1f} ms beside"
        step(f"{name}: {said}; {attacking.result()} bytes sent, or clients refused")
    shares = [f"{100 * value / seconds / pace.repeats:.0f} %" for value in work]
    more = f"; the gateway works {shares[0]} of a core alone, {shares[1]} beside"
    return [compared(name, alone, under, more, judged=other_server is None)]


def idle(bench: Bench, pace: Pace, seconds: float) -> list[Figure]:
    """The good client beside connections that do nothing."""
    alone = [bench.p99_ms(seconds) for _ in range(pace.repeats)]
    holding = bench.others(clients.idle_connections, bench.port, clients.raw_request(PATH, BODY), IDLE, IDLE_OPEN_S)
    time.sleep(SETTLE_S)
    while not established(bench.port) >= IDLE:
        if holding.done():
            raise RuntimeError(f"only {holding.result()} connections were open")
        time.sleep(SETTLE_S)
    under = [bench.p99_ms(seconds) for _ in range(pace.repeats)]
    held = holding.result()
    step(f"idle: p99 {max(alone):.1f} ms alone at most, {max(under):.1f} ms beside {held} connections")
    return [
        compared("idle_connections", alone, under),
        measured("idle_connections_held", [held], "connections", at_least=IDLE, detail=f"for {IDLE_OPEN_S:.0f} s"),
    ]


def readers(bench: Bench) -> list[Figure]:
    """Clients that request large answers and read nothing."""
    request = clients.raw_request("/function/large", BODY)
    before = bench.gateway_mib()
    held = []
    crowd = []
    for _ in range(READERS):
        client = socket.create_connection(("127.0.0.1", bench.port), timeout=60)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        client.sendall(request)
        crowd.append(client)
    for _ in range(20):
        time.sleep(0.5)
        held.append(bench.gateway_mib() - before)
    for client in crowd:
        client.close()
    time.sleep(3.0)
    after = bench.gateway_mib() - before
    step(f"{READERS} slow readers of 20 MB: +{max(held):.0f} MiB while they hold on, +{after:.0f} MiB afterwards")
    said = f"{READERS} clients that read nothing of 20 MB each"
    return [
        measured("slow_readers_hold", [max(held)], "MiB", at_most=384.0, detail=f"{said}; the bound is 256 MiB unsent"),
        measured("slow_readers_leave_behind", [after], "MiB", at_most=64.0, detail=said),
    ]


def compared(name: str, alone: list[float], under: list[float], more: str = "", *, judged: bool = True) -> Figure:
    said = f"{sum(alone) / len(alone):.2f} ms alone, {sum(under) / len(under):.2f} ms beside{more}"
    ratios = [first / second for first, second in zip(under, alone, strict=True)]
    return measured(f"good_p99_beside_{name}", ratios, "× alone", at_most=2.0 if judged else None, detail=said)


def established(port: int) -> int:
    """The number of the server's connections, from the kernel's table."""
    place, connected = f":{port:04X}", "01"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return sum(row[1].endswith(place) and row[3] == connected for row in rows)


if __name__ == "__main__":
    start(main, __doc__)
