"""A real instance loop around an application that does what the request's path says. Run with the channel's descriptor.

As a handler.py it is the same application for platforms that load a function by itself.
"""

import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

from gnomon_core.wire import Frame, Kind, Member
from gnomon_runtime import instance


def pieces(batch: Frame) -> Iterator[Frame]:
    how = batch.members[0].body
    end = (Member(500, 1, b"", b"half way"),) if how == b"broken" else ()
    try:
        yield Frame(Kind.STREAM_START, batch.batch_id, members=(Member(200, 1, b"Content-Type: text/plain", b""),))
        for number in itertools.count() if how == b"endless" else range(1000):
            yield Frame(Kind.STREAM_DATA, batch.batch_id, members=(Member(0, 0, b"", b"%d\n" % number),))
            time.sleep(0.002)
            if how in (b"short", b"broken") and number == 2:
                break
        yield Frame(Kind.STREAM_END, batch.batch_id, members=end)
    finally:
        sys.stdout.write("closed\n")
        sys.stdout.flush()


class Echo:
    meeting = threading.Barrier(4)
    """Nobody passes before four are there."""
    kept: bytes | memoryview = b""
    cores = 1

    concurrency = 1

    def hello(self) -> dict[str, object]:
        return {"kind": "echo", "concurrency": self.concurrency}

    def resize(self, cores: int) -> None:
        self.cores = cores

    def run(self, batch: Frame) -> Frame | Iterator[Frame]:
        path = batch.members[0].meta.split(b"\n")[1]
        if path == b"/crash":
            os._exit(3)
        if path == b"/together":
            self.meeting.wait(30)
        if path == b"/slow":
            time.sleep(0.3)
        if path == b"/garbage" and __name__ != "__main__":
            return Frame(Kind.RESULT, batch.batch_id + 1)
        if path == b"/garbage":
            os.write(int(sys.argv[1]), b"x" * 100)
        if path == b"/stream":
            return pieces(batch)
        if path == b"/keep":
            self.kept = batch.members[0].body
        if path == b"/kept":
            return Frame(Kind.RESULT, batch.batch_id, members=[Member(200, 1, b"", bytes(self.kept))])
        if path == b"/cpus":
            body = f"{self.cores} {sorted(os.sched_getaffinity(0))}".encode()
            return Frame(Kind.RESULT, batch.batch_id, members=[Member(200, 1, b"", body)])
        return Frame(Kind.RESULT, batch.batch_id, members=[Member(200, 1, b"", bytes(m.body)) for m in batch.members])


def gnomon_application(launch: object) -> Echo:
    return Echo()


if __name__ == "__main__":
    echo = Echo()
    echo.concurrency = int(sys.argv[2])
    sys.exit(instance.run(echo, socket.socket(fileno=int(sys.argv[1]))))
