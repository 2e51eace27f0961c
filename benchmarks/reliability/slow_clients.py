"""A good client's latency beside clients that are slow, endless or idle; and what slow readers hold.

    python -m benchmarks.reliability.slow_clients [--quick]

The good client asks a function that does nothing, one request after another on a connection that is kept, alone and beside the
others in turn: 20 that send header values without an end as fast as they are taken and come again when refused, 1,000 that send a
header line a second, 10,000 that have asked once and keep their connections. Then 50 clients ask for 20 MB each and read nothing:
the gateway's resident memory while they hold on, and after they have left. All clients run on the same machine.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gnomon
from benchmarks.programs import Pace, asked, ended_well, step
from benchmarks.reliability import _clients as clients
from benchmarks.reliability.connections import BODY, PATH, port_of
from benchmarks.report import Figure, measured, write
from gnomon_simulator.results import percentile

ENDLESS, SLOW, IDLE, READERS = 20, 1000, 10_000, 50
SETTLE_S = 1.0
HEAD = b"POST /function/noop HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MIB = 1 << 20
IDLE_OPEN_S = 30.0
"""Less than the 75 s after which the gateway closes a connection that does nothing, and the time to open all of them."""


class Attack(NamedTuple):
    """So many clients of a kind, each of which begins with `head`."""

    name: str
    run: Callable[[int, bytes, int, float], int]
    head: bytes
    count: int


def main(pace: Pace) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with gnomon.serving() as ours, clients.processes(2) as apart:
        ours.up("noop")
        port = port_of(ours)
        seconds = 2.0 * pace.load_s
        figures = [
            *beside(ours, pace, apart, seconds, Attack("endless_headers", clients.endless, HEAD + b"X-Endless: ", ENDLESS)),
            *beside(ours, pace, apart, seconds, Attack("slow_senders", clients.slow, HEAD, SLOW)),
            *idle(port, pace, apart, IDLE_OPEN_S / 2 / pace.repeats),
        ]
        ours.up("large")
        figures += readers(ours)
    write("reliability_slow_clients", figures, repeats=pace.repeats, packages=("gnomon", "uvloop"), folder=pace.results)


def beside(ours: gnomon.Gnomon, pace: Pace, apart: Callable[..., Any], seconds: float, attack: Attack) -> list[Figure]:
    """The good client alone and beside an attack, in turn, and what the gateway works meanwhile."""
    port = port_of(ours)
    alone, under, work = [], [], [0.0, 0.0]
    for _ in range(pace.repeats):
        begun_s = processor_s(ours)
        alone.append(p99_ms(port, apart, seconds))
        work[0] += processor_s(ours) - begun_s
        attacking = apart(attack.run, port, attack.head, attack.count, seconds + 2 * SETTLE_S)
        time.sleep(SETTLE_S)
        begun_s = processor_s(ours)
        under.append(p99_ms(port, apart, seconds))
        work[1] += processor_s(ours) - begun_s
        said = f"p99 {alone[-1]:.1f} ms alone, {under[-1]:.1f} ms beside"
        step(f"{attack.name}: {said}; {attacking.result()} bytes sent, or clients refused")
    shares = [f"{100 * one / seconds / pace.repeats:.0f} %" for one in work]
    return compared(attack.name, alone, under, f"; the gateway works {shares[0]} of a core alone, {shares[1]} beside")


def idle(port: int, pace: Pace, apart: Callable[..., Any], seconds: float) -> list[Figure]:
    """The good client beside connections that do nothing."""
    alone = [p99_ms(port, apart, seconds) for _ in range(pace.repeats)]
    holding = apart(clients.idle, port, clients.request(PATH, BODY), IDLE, IDLE_OPEN_S)
    time.sleep(SETTLE_S)
    while not established(port) >= IDLE:
        if holding.done():
            raise RuntimeError(f"only {holding.result()} connections were open")
        time.sleep(SETTLE_S)
    under = [p99_ms(port, apart, seconds) for _ in range(pace.repeats)]
    held = holding.result()
    step(f"idle: p99 {max(alone):.1f} ms alone at most, {max(under):.1f} ms beside {held} connections")
    return [
        *compared("idle_connections", alone, under),
        measured("idle_connections_held", [held], "connections", at_least=IDLE, detail=f"for {IDLE_OPEN_S:.0f} s"),
    ]


def readers(ours: gnomon.Gnomon) -> list[Figure]:
    """Clients that request large answers and read nothing."""
    asked_bytes = clients.request("/function/large", BODY)
    before = resident_mib(ours)
    held = []
    crowd = []
    for _ in range(READERS):
        client = socket.create_connection(("127.0.0.1", port_of(ours)), timeout=60)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        client.sendall(asked_bytes)
        crowd.append(client)
    for _ in range(20):
        time.sleep(0.5)
        held.append(resident_mib(ours) - before)
    for client in crowd:
        client.close()
    time.sleep(3.0)
    after = resident_mib(ours) - before
    step(f"{READERS} slow readers of 20 MB: +{max(held):.0f} MiB while they hold on, +{after:.0f} MiB afterwards")
    said = f"{READERS} clients that read nothing of 20 MB each"
    return [
        measured("slow_readers_hold", [max(held)], "MiB", at_most=384.0, detail=f"{said}; the bound is 256 MiB unsent"),
        measured("slow_readers_leave_behind", [after], "MiB", at_most=64.0, detail=said),
    ]


def compared(name: str, alone: list[float], under: list[float], more: str = "") -> list[Figure]:
    said = f"{sum(alone) / len(alone):.2f} ms alone, {sum(under) / len(under):.2f} ms beside{more}"
    ratios = [one / other for one, other in zip(under, alone, strict=True)]
    return [measured(f"good_p99_beside_{name}", ratios, "× alone", at_most=2.0, detail=said)]


def p99_ms(port: int, apart: Callable[..., Any], seconds: float) -> float:
    latencies_s: list[float] = apart(clients.good, port, clients.request(PATH, BODY), seconds).result()
    return 1e3 * (percentile(sorted(latencies_s), 99) or 0.0)


def established(port: int) -> int:
    """How many connections the server has, by the kernel's table."""
    place, connected = f":{port:04X}", "01"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return sum(row[1].endswith(place) and row[3] == connected for row in rows)


def processor_s(ours: gnomon.Gnomon) -> float:
    """The processor time of the gateway's process."""
    fields = Path(f"/proc/{ours.program.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(ours: gnomon.Gnomon) -> float:
    pages = int(Path(f"/proc/{ours.program.process.pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / MIB


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
