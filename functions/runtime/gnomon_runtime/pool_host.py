"""The first process of a node's pool container: `python -m gnomon_runtime.pool_host SOCKET` waits for the node's coordinator.

    SOCKET ─ an owner connects ▶ a supervisor of its own, with zygote, containers and Shadows below it ▶ it ends ▶ the next

The pool is an unprivileged container in which layer programs run; its owner, the node's agent, runs in another container of the
same pod, with access to the kubelet's folders. An owner's connection is the supervisor's socket: when it closes, all processes of
that supervisor end. This process survives its owners, because its exit would make Kubernetes restart the container; after SIGTERM
it waits for its current owner to disconnect.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType

_FOR_ALL = 0o666
"""Mode of the socket: its folder is the pod's own, and the pod's two containers run as different users."""
END_S = 10.0


class _Terminated(Exception):  # noqa: N818 - it is no error: the pod ends
    """The pod has received SIGTERM."""


def listening(path: Path) -> socket.socket:
    """Listen on a Unix socket at this path, for owners."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.bind(str(path))
    path.chmod(_FOR_ALL)
    found.listen()
    return found


def serve(arrivals: socket.socket) -> None:
    """Serve one owner after the other until SIGTERM, then until the last one ends."""
    while True:
        owner, _ = arrivals.accept()
        with owner:
            os.set_inheritable(owner.fileno(), True)  # noqa: FBT003 - the signature is os's
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", "gnomon_runtime.supervisor", str(owner.fileno())],
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
                pass_fds=(owner.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        try:
            process.wait()
        except _Terminated:
            # The owner gets SIGTERM at the same moment, and may wait for pods that have Shadows here.
            process.wait()
            raise
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a supervisor, which ends everything that it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    raise _Terminated


def main(arguments: list[str]) -> int:
    """Serve owners at this path."""
    # The kernel discards SIGTERM for PID 1 of a container unless it has a handler.
    signal.signal(signal.SIGTERM, _on_signal)
    path = Path(arguments[0])
    try:
        with listening(path) as arrivals:
            serve(arrivals)
    except _Terminated:
        path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
