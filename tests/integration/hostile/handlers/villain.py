"""A handler that does what its path says, none of it good."""

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

CHANNEL = 3
MIB = 1 << 20


def handle(event: Any, context: Any) -> Any:
    name, _, argument = event.path.strip("/").partition("/")
    return DEEDS[name](event, argument)


def shell(event: Any, _: str) -> bytes:
    """Run the body as a script and answer what it says."""
    command = ["bash", "-c", event.body.decode()]
    ran = subprocess.run(command, capture_output=True, timeout=20, stdin=subprocess.DEVNULL, check=False)
    return ran.stdout + ran.stderr


def python(event: Any, _: str) -> Any:
    """Run the body as Python and answer what it puts into `out`."""
    space: dict[str, Any] = {"out": {}}
    exec(event.body.decode(), space)
    return space["out"]


def pretend(claimed_bytes: int) -> None:
    """Begin a result on the channel that claims to be this long."""
    os.write(CHANNEL, struct.pack("<4sBBHIIIQQd", b"GNM1", 2, 0, 1, 0, 0, 0, 1, claimed_bytes, 0.0))


def bomb(*_: Any) -> str:
    """Fork until nothing more can be forked, in every child."""
    end_s, first = time.monotonic() + 1, os.getpid()
    while time.monotonic() < end_s:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
    if os.getpid() != first:
        time.sleep(60)
        os._exit(0)
    return "boom"


def hoard(_: Any, argument: str) -> str:
    held = bytearray(int(argument) * MIB)
    held[::4096] = b"x" * len(held[::4096])
    return "had it all"


def talk(_: Any, argument: str) -> str:
    line = "p" * 1023 + "\n"
    for _ in range(int(argument) * 1024):
        sys.stdout.write(line)
    sys.stdout.flush()
    return "said it"


def leave_later(*_: Any) -> str:
    threading.Timer(0.05, lambda: os._exit(9)).start()
    return "soon"


def stream(_: Any, argument: str) -> Iterator[Any]:
    yield "first"
    if argument == "raise":
        raise ValueError(argument)
    if argument == "exit":
        os._exit(1)
    if argument == "object":
        yield object()
    for _ in range(100):
        yield "z" * MIB


DEEDS: dict[str, Callable[[Any, str], Any]] = {
    "echo": lambda event, _: event.body,
    "shell": shell,
    "python": python,
    "exit": lambda _, code: os._exit(int(code)),
    "raise SystemExit": lambda *_: sys.exit("enough"),
    "segfault": lambda *_: ctypes.string_at(0),
    "abort": lambda *_: os.abort(),
    "kill itself": lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    # The kernel may stop another thread first: without the sleep this thread could answer before the process stops.
    "freeze": lambda *_: (os.kill(os.getpid(), signal.SIGSTOP), time.sleep(60)),
    "leave later": leave_later,
    "bomb": bomb,
    "sleep": lambda _, seconds: time.sleep(float(seconds)),
    "close everything": lambda *_: os.closerange(0, 1024),
    "close the channel": lambda *_: os.close(CHANNEL),
    "scribble": lambda _, count: os.write(CHANNEL, bytes(range(256)) * int(count)),
    "promise much": lambda *_: pretend(1 << 62),
    "promise something": lambda *_: (pretend(1 << 20), time.sleep(60)),
    "answer at length": lambda _, megabytes: b"x" * (int(megabytes) * MIB),
    "hoard": hoard,
    "talk": talk,
    "talk in one line": lambda _, megabytes: (sys.stdout.write("l" * (int(megabytes) * MIB)), "said it")[1],
    "status": lambda _, status: {"statusCode": int(status), "body": "x"},
    "headers": lambda event, _: {"statusCode": 200, "body": "x", "headers": json.loads(event.body)},
    "raise": lambda *_: {}["/work/secret " + "x" * 100_000],
    "answer an object": lambda *_: object(),
    "answer a surrogate": lambda *_: "\ud800",
    "stream": stream,
}
