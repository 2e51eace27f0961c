"""From a fork of the zygote to an instance: everything that a child does between its order and its first batch.

The child is alone (one thread) until the application is loaded, which is why it may change users, namespaces and limits here.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import random
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from gnomon_core import packets
from gnomon_core.errors import GnomonError
from gnomon_core.launch import Order, Sandbox
from gnomon_runtime import applications, instance, linux, sandbox

CHANNEL = 3
OOM_SCORE = "500"
"""When memory runs out, the kernel ends an instance and not the gateway."""
ADOPTION_S = 5.0
START_FAILED = 1


def await_order(control: socket.socket, supervisor: int) -> NoReturn:
    """Wait for an order, become its instance and never return. Without an order, end with the zygote."""
    try:
        _, (order, channel, log) = packets.receive(control)
    except packets.PeerGoneError:
        os._exit(0)
    status = START_FAILED
    try:
        text = packets.read_file(order)
        _take_descriptors(channel, log)
        status = live(Order.from_json(text), supervisor)
    except GnomonError as error:
        sys.stderr.write(f"{error}\n")
    except SystemExit as error:
        sys.stderr.write(f"The function ended itself: {error}\n")
    except BaseException:  # noqa: BLE001 - whatever a function's code raises goes to its log
        traceback.print_exc()
    _flush()
    os._exit(status)


def live(order: Order, supervisor: int) -> int:
    """Enter the sandbox, load the application, serve."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _await_adoption(supervisor)
    linux.allow_inspection()
    Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    if order.entered:
        sandbox.set_limits(order.sandbox.limits)
        linux.forbid_inspection()
    else:
        enter(order.sandbox)
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != supervisor:
        return START_FAILED
    linux.become_subreaper()
    launch = order.launch
    linux.set_process_name(f"gnomon {launch.function}")
    instance.pin(order.cpus)
    os.environ.clear()
    os.environ.update(launch.environment)
    use_cores(launch.cores)
    renew_seeds()
    os.chdir("/")
    connection = socket.socket(fileno=CHANNEL)
    return instance.run(applications.load(launch), connection, order.cpus)


def enter(description: Sandbox) -> None:
    """Enter a sandbox in which this Python and our packages still work."""
    own = [sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)]
    own += [
        str(Path(module.__file__).parent) for name in ("gnomon_core", "gnomon_runtime") if (module := sys.modules[name]).__file__
    ]
    own += [path for path in sys.path if Path(path).is_absolute()]
    sandbox.enter(dataclasses.replace(description, readable=(*description.readable, *own)))


def enter_described(descriptor: int) -> None:
    """Enter the sandbox whose description is in this anonymous file."""
    text = packets.read_file(descriptor)
    os.close(descriptor)
    enter(Sandbox.from_json(text))


def use_cores(cores: int) -> None:
    """Let numerical libraries use this many threads. The zygote imported them with one."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(cores))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(cores)
    if cores > 1 and "numpy" in sys.modules:
        _openblas_threads(cores)


def _openblas_threads(cores: int) -> None:
    """Set the threads of every OpenBLAS that is loaded: it reads its variable only when it is."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in lines if "openblas" in line}:
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(cores)
                break


def renew_seeds() -> None:
    """Give this instance random numbers of its own, unlike those of its siblings."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()


def _take_descriptors(channel: int, log: int) -> None:
    """Standard input is empty, both outputs go to the log, the channel is descriptor 3, and nothing else is open."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(channel, CHANNEL, inheritable=False)
    os.closerange(CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))


def _await_adoption(supervisor: int) -> None:
    """Wait until the process between us and the zygote has ended and we are the supervisor's child."""
    deadline_s = time.monotonic() + ADOPTION_S
    while os.getppid() != supervisor and time.monotonic() < deadline_s:
        time.sleep(0.0002)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
