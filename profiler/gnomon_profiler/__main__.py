"""The process that captures a model: see `capturing`, which starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_profiler.capturing import ERROR_PREFIX, CaptureRequest, capture_here


def main(arguments: list[str]) -> int:
    """Capture what the first argument says into the folder that is the second."""
    document, folder = json.loads(arguments[0]), Path(arguments[1])
    shapes = tuple(map(tuple, document.pop("shapes", ())))
    try:
        files = capture_here(CaptureRequest(**document, shapes=shapes), lambda line: print(line, flush=True))  # noqa: T201 - read by the parent
    except GnomonError as error:
        document = {"status": error.status, "code": error.code, "message": error.message, "hint": error.hint}
        print(ERROR_PREFIX + json.dumps(document), flush=True)  # noqa: T201
        return 1
    for file, data in files.items():
        (folder / file).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
