"""All of these tests: first those of the one cluster, then, in two processes, those on control planes of their own.

    python -m tests.kubernetes [options of pytest]

Not side by side: API servers that start take the cores that the cluster's kubelet and probes need, and its pods count as not
ready. The status is the worse of both.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

HERE = Path(__file__).parent
TIMEOUT_S = 300
IN_TWO = ("-n", "2", "--dist", "loadfile")
NOTHING_TO_DO = 5
"""pytest's status where no test was chosen."""


def main() -> int:
    """The worse of both statuses."""
    return max(run("whole_cluster"), run("not whole_cluster", *IN_TWO))


def run(marks: str, *more: str) -> int:
    """Run those with these marks. Each of both remembers what has failed in a place of its own."""
    cache = f".pytest_cache/{marks.replace(' ', '-')}"
    options = ["-q", str(HERE), "-m", f"not slow and {marks}", f"--timeout={TIMEOUT_S}", "-o", f"cache_dir={cache}"]
    process = subprocess.Popen([sys.executable, "-m", "pytest", *options, *more, *sys.argv[1:]])

    def end(number: int, _: FrameType | None) -> NoReturn:
        process.terminate()
        process.wait()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    status = process.wait()
    return 0 if status == NOTHING_TO_DO else abs(status)


if __name__ == "__main__":
    sys.exit(main())
