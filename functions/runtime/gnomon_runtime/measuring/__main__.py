"""The loop: an order, a fork that carries it out, the next order."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from gnomon_core import packets
from gnomon_core.errors import GnomonError
from gnomon_runtime import linux
from gnomon_runtime.measuring.measurements import (
    measure_engines,
    measure_latency,
    measure_loading,
    measure_memory,
    measure_network,
    measure_starts,
    measure_transfer,
    measure_variant,
)

Say = Callable[[dict[str, Any]], None]
MEASURES: Mapping[str, Callable[[Mapping[str, Any], Say], None]] = {
    "engines": measure_engines,
    "latency": measure_latency,
    "loading": measure_loading,
    "memory": measure_memory,
    "network": measure_network,
    "starts": measure_starts,
    "transfer": measure_transfer,
    "variant": measure_variant,
}


def serve(control: socket.socket) -> None:
    """Carry out orders, each in a fork of its own, until the Profiler closes the socket."""
    while True:
        try:
            order, _ = packets.receive(control)
        except packets.PeerGoneError:
            return
        child = os.fork()
        if child == 0:
            _carry_out(order, control)
        _, status = os.waitpid(child, 0)
        if status:
            packets.send(control, {"failed": f"the measuring process ended with status {os.waitstatus_to_exitcode(status)}"})


def _carry_out(order: Mapping[str, Any], control: socket.socket) -> NoReturn:
    """Measure in a process that exists for this order only."""
    linux.die_with_parent(signal.SIGKILL)
    try:
        MEASURES[order["measure"]](order, lambda measured: packets.send(control, {"measured": measured}))
        packets.send(control, {"done": True})
    except packets.PeerGoneError:
        pass
    except (GnomonError, RuntimeError, OSError, ValueError, KeyError) as error:
        packets.send(control, {"failed": f"{type(error).__name__}: {error}"})
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Serve the Profiler at the other end of this descriptor."""
    linux.die_with_parent(signal.SIGKILL)
    linux.set_process_name("gnomon measure")
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    gc.collect()
    gc.freeze()
    packets.send(control, {"hello": {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability()}})
    serve(control)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
