"""All of these tests: those of the one cluster, and beside them, in two processes, those on control planes of their own.

    python -m tests.kubernetes [options of pytest]

What is said of the others is shown when they have ended. Their status counts as the first's does.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

HERE = Path(__file__).parent
TIMEOUT_S = 300
# They mostly wait: for a controller, for a Lease to run out, for a process to begin.
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile")
NOTHING_TO_DO = 5
"""pytest's status where no test was chosen."""


def main() -> int:
    """The worse of both statuses."""
    with tempfile.TemporaryFile("w+") as beside:
        running = [begin("whole_cluster"), begin("not whole_cluster", *SIDE_BY_SIDE, output=beside)]

        def end(number: int, _: FrameType | None) -> NoReturn:
            for process in running:
                process.terminate()
            sys.exit(128 + number)

        signal.signal(signal.SIGTERM, end)
        try:
            statuses = [process.wait() for process in running]
        finally:
            beside.seek(0)
            sys.stdout.write(beside.read())
    return max(0 if status == NOTHING_TO_DO else abs(status) for status in statuses)


def begin(marks: str, *more: str, output: IO[str] | None = None) -> subprocess.Popen[bytes]:
    """Run those with these marks. Each of both remembers what has failed in a place of its own."""
    cache = f".pytest_cache/{marks.replace(' ', '-')}"
    options = ["-q", str(HERE), "-m", f"not slow and {marks}", f"--timeout={TIMEOUT_S}", "-o", f"cache_dir={cache}"]
    return subprocess.Popen([sys.executable, "-m", "pytest", *options, *more, *sys.argv[1:]], stdout=output)


if __name__ == "__main__":
    sys.exit(main())
