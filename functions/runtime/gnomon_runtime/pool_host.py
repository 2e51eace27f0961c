"""The first process of a node's pool container: `python -m gnomon_runtime.pool_host SOCKET` waits for the node's coordinator.

    SOCKET ─ an owner connects ▶ a supervisor of its own, with zygote, containers and Shadows below it ▶ it ends ▶ the next

The pool is a container of its own, without any right on the node, in which layer programs run; whoever owns it is in another
container of the same pod, with the kubelet's folders. An owner's connection is the supervisor's socket: when it closes, whatever
was made for it ends. A pod is restarted by Kubernetes only where this process ends, so it does not end with an owner; and when
the pod is told to end, it ends after the one that it has.
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
"""The folder is the pod's own; the two containers run as different users."""
END_S = 10.0


class _Told(Exception):  # noqa: N818 - it is no error: the pod ends
    """SIGTERM."""


def listening(path: Path) -> socket.socket:
    """The socket at which owners arrive."""
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
        except _Told:
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


def _told(_number: int, _frame: FrameType | None) -> None:
    raise _Told


def main(arguments: list[str]) -> int:
    """Serve owners at this path."""
    # Without a handler the first process of a container does not hear it at all.
    signal.signal(signal.SIGTERM, _told)
    path = Path(arguments[0])
    try:
        with listening(path) as arrivals:
            serve(arrivals)
    except _Told:
        path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
