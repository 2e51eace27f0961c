"""The entry point of a zygote's process: a script that runs under any Python environment, with or without Gnomon installed.

    python -I -u bootstrap.py '{"packages": {"gnomon_core": FOLDER, …}, "preload": […]}' SOCKET SUPERVISOR SANDBOX

The supervisor adds the numbers: two descriptors and its process id. `-I` keeps the current folder and PYTHON… variables out. Our
packages are registered one by one; their folder is not put on sys.path, where a handler would find everything else that is
installed beside them.

An environment that a user's requirements made may run code as soon as its Python starts. Its zygote therefore enters the
function's sandbox first: given `then`, a command line, this script, under our own Python, enters the sandbox that the descriptor
SANDBOX describes and becomes that command.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def make_importable(name: str, folder: str) -> None:
    """Register the package in this folder under its name."""
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, Path(folder, "__init__.py"), submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)


def main(order: dict[str, Any], numbers: list[int]) -> None:
    """Become a zygote, or enter a sandbox and begin again there."""
    for name, folder in order["packages"].items():
        make_importable(name, folder)
    connection, supervisor, description = numbers
    if "then" not in order:
        importlib.import_module("gnomon_runtime.zygote").main(connection, supervisor, order["preload"])
        return
    child_init = importlib.import_module("gnomon_runtime.child_init")
    linux = importlib.import_module("gnomon_runtime.linux")
    child_init.enter_described(description)
    linux.die_with_parent(signal.SIGKILL)
    os.set_inheritable(connection, True)  # noqa: FBT003 - the signature is os's
    command = [*order["then"], str(connection), str(supervisor), "-1"]
    os.execv(command[0], command)  # noqa: S606 - the platform's own command line


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), [int(text) for text in sys.argv[2:]])
