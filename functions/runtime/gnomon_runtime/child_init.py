"""Initialises a fork of the zygote as an instance: everything that a child does between its order and its first batch.

The child is alone (one thread) until the application is loaded, which is why it may change users, namespaces and limits here.

A pool container belongs to no function: it enters no sandbox until a load, with an order, makes it a function's Shadow.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import importlib
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NoReturn

from gnomon_core import packets
from gnomon_core.coordination import DESCRIPTOR, EMPTY_KIND
from gnomon_core.errors import GnomonError
from gnomon_core.launch import Order, Sandbox
from gnomon_runtime import instance, linux, sandbox
from gnomon_runtime.application import load_function

CHANNEL = 3
OOM_SCORE = "500"
"""The OOM score of instances: when memory runs out, the kernel ends an instance and not the gateway."""
ADOPTION_S = 5.0
START_FAILED = 1
Steps = Generator[None, None, None]
"""A rehearsal that is under way. To close it gives back what it holds."""
_OVER = object()


def await_order(control: socket.socket, supervisor: int, rehearsal: Steps) -> NoReturn:
    """Wait for an order, become its instance and never return. Without an order, end with the zygote.

    With the order come the channel, the log and, for an instance that can be part of a pair, the coordination socket. Until then
    the child rehearses, step by step.
    """
    _rehearse(control, rehearsal)
    try:
        _, (order, channel, log, *coordination) = packets.receive(control)
    except packets.PeerGoneError:
        os._exit(0)
    status = START_FAILED
    try:
        text = packets.read_file(order)
        _take_descriptors(channel, log, coordination)
        status = run_instance(Order.from_json(text), supervisor, rehearsal, coordinated=bool(coordination))
    except GnomonError as error:
        sys.stderr.write(f"{error}\n")
    except SystemExit as error:
        sys.stderr.write(f"The function ended itself: {error}\n")
    except BaseException:  # noqa: BLE001 - whatever a function's code raises goes to its log
        traceback.print_exc()
    _flush()
    os._exit(status)


def _rehearse(control: socket.socket, rehearsal: Steps) -> None:
    """Rehearse until the order arrives. A failure here is harmless: a real fault will show again in the load."""
    try:
        while not select.select([control], [], [], 0)[0] and next(rehearsal, _OVER) is not _OVER:
            pass
    except Exception:  # noqa: BLE001 - kernels may raise anything, and this process is no instance yet
        traceback.print_exc()


def run_instance(order: Order, supervisor: int, rehearsal: Steps, *, coordinated: bool = False) -> int:
    """Enter the sandbox, load the application and serve. Returns the exit status."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _await_adoption(supervisor)
    if not apply_order(order, supervisor):
        return START_FAILED
    reseed_generators()
    coordination = socket.socket(fileno=DESCRIPTOR) if coordinated else None
    if order.launch.kind == EMPTY_KIND:
        return _run_pool_container(coordination, supervisor, rehearsal)
    rehearsal.close()
    connection = socket.socket(fileno=CHANNEL)
    application = load_function(order.launch)
    take_orders = getattr(application, "take_orders", None)
    if coordination is not None and take_orders is None:
        # User code must not have the coordination socket.
        coordination.close()
        coordination = None
    idle_work = take_orders(coordination) if take_orders is not None and coordination is not None else None
    return instance.run(application, connection, idle_work)


def apply_order(order: Order, supervisor: int) -> bool:
    """Apply the order: control groups, sandbox, user, CPUs and environment. False if the supervisor has ended meanwhile."""
    # While a process is not dumpable, its /proc/self files belong to root (proc(5)), and one is written below.
    linux.allow_inspection()
    for file in order.groups:
        with contextlib.suppress(OSError):
            Path(file).write_text("0", encoding="ascii")
    Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    launch = order.launch
    if launch.kind == EMPTY_KIND:
        linux.forbid_inspection()
    elif order.entered:
        sandbox.set_limits(order.sandbox.limits)
        linux.forbid_inspection()
    else:
        enter(order.sandbox)
    # Only now: a change of the user id clears the signal (PR_SET_PDEATHSIG in prctl(2)).
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != supervisor:
        # The supervisor ended before the signal was set, and will never send it.
        return False
    linux.become_subreaper()
    linux.set_process_name(f"gnomon {launch.function or launch.kind}")
    instance.pin(order.cpus)
    os.environ.clear()
    os.environ.update(launch.environment)
    use_cores(launch.cores)
    os.chdir("/")
    return True


def _run_pool_container(coordination: socket.socket | None, supervisor: int, rehearsal: Steps) -> int:
    """Wait as an empty container for a load. Returns the exit status."""
    if coordination is None:
        sys.stderr.write("A pool container without a coordination socket cannot get orders, and ends.\n")
        return START_FAILED
    os.close(CHANNEL)
    shadow_side = importlib.import_module("gnomon_runtime.pair.shadow_side")

    def apply(order: Order) -> None:
        if not apply_order(order, supervisor):
            os._exit(START_FAILED)

    return int(shadow_side.serve(coordination, apply, rehearsal))


def enter(description: Sandbox) -> None:
    """Enter a sandbox in which this Python and Gnomon's packages stay readable."""
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
    """Set the number of threads of numerical libraries. The zygote imported them with one."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(cores))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(cores)
    if cores > 1 and "numpy" in sys.modules:
        _openblas_threads(cores)


def _openblas_threads(cores: int) -> None:
    """Set the number of threads of every loaded OpenBLAS: it reads its variable at load time only."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in lines if "openblas" in line}:
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(cores)
                break


def reseed_generators() -> None:
    """Reseed the random generators, whose state all forks of the zygote share."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        # `torch.seed` would also probe every kind of accelerator: 10 ms and a thousand page faults in a fork.
        torch.default_generator.seed()


def _take_descriptors(channel: int, log: int, coordination: Sequence[int] = ()) -> None:
    """Set the descriptors: 0 empty, 1 and 2 the log, 3 the channel, 4 the coordination socket; close all others."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Duplicate to high numbers first: each may have the other's target number.
    targets = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR + 1) for number in (channel, *coordination)]
    for number, descriptor in enumerate(targets, CHANNEL):
        os.dup2(descriptor, number, inheritable=False)
    os.closerange(CHANNEL + len(targets), os.sysconf("SC_OPEN_MAX"))


def _await_adoption(supervisor: int) -> None:
    """Wait until the intermediate process of the double fork has ended and the supervisor is the parent."""
    deadline_s = time.monotonic() + ADOPTION_S
    while os.getppid() != supervisor and time.monotonic() < deadline_s:
        time.sleep(0.0002)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
