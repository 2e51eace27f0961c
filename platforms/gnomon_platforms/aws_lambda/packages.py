"""The zip that becomes a function: Gnomon's core and runtime, and a user's handler with what its requirements brought.

The same content gives the same bytes: files in order, dated 1980. Lambda takes 250 MB unpacked; what is larger, such as torch,
needs the container image (`LambdaOptions.image`).
"""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from gnomon_core.errors import GnomonError

OURS = ("gnomon_core", "gnomon_runtime")
HANDLER = "gnomon_runtime.aws_lambda.handler"
FUNCTION_FOLDER = "function"
MAX_UNPACKED_BYTES = 250 * 2**20
_DATE = (1980, 1, 1, 0, 0, 0)
_LEFT_OUT = frozenset({"__pycache__"})
_NOT_NEEDED = (".pyc", ".dist-info/RECORD", ".pth")


def zip_package(handler: Path | None = None, environment: Path | None = None) -> bytes:
    """The package of a function; `handler` is a user's folder, `environment` the site-packages of its requirements.

    Raises:
        GnomonError: 422 `package_too_large`.

    """
    unpacked = 0
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, file in _files(handler, environment):
            unpacked += file.stat().st_size
            if unpacked > MAX_UNPACKED_BYTES:
                raise GnomonError(
                    422,
                    "package_too_large",
                    f"The function takes more than {MAX_UNPACKED_BYTES >> 20} MB unpacked, all that Lambda takes as a zip.",
                    "Ask for less in its requirements. Models need no torch of their own: name one with gnomon/model.",
                )
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            executable = bool(file.stat().st_mode & stat.S_IXUSR)
            # Functions run as a user of Lambda's, who must be able to read what is here.
            entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            archive.writestr(entry, file.read_bytes())
    return packed.getvalue()


@cache
def own_files() -> tuple[tuple[str, Path], ...]:
    """Gnomon's own part of every package."""
    found: list[tuple[str, Path]] = []
    for package in OURS:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        found += _below(Path(spec.origin).parent, package)
    return tuple(found)


def _files(handler: Path | None, environment: Path | None) -> Iterator[tuple[str, Path]]:
    taken: set[str] = set()
    sources = [*own_files(), *(_below(handler, FUNCTION_FOLDER) if handler is not None else ())]
    for name, file in [*sources, *(_below(environment, "") if environment is not None else ())]:
        if name not in taken:
            taken.add(name)
            yield name, file


def _below(folder: Path, prefix: str) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.is_file() and not _LEFT_OUT.intersection(parts) and not file.name.endswith(_NOT_NEEDED):
            found.append(("/".join((prefix, *parts) if prefix else parts), file))
    return found
