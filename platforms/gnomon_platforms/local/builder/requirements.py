"""A handler's requirements as an identity: the same requirements, in any order and with any comments, are one environment.

What the identity cannot see is refused: another requirements file, a path of this machine, an editable install. Two functions
with the same text would share an environment that differs.
"""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass

from gnomon_core.errors import GnomonError

MAX_BYTES = 256 << 10
_COMMENT = re.compile(r"(^|\s+)#.*$")
_OTHER_FILE = re.compile(r"-[rce]|--(requirement|constraint|editable)\b|\.")


@dataclass(frozen=True, slots=True)
class Requirements:
    """Normalised requirement lines: no comments, no blank lines, sorted, each once. Options keep their order before them."""

    lines: tuple[str, ...]

    @property
    def environment_id(self) -> str:
        """What names the environment: these lines for this Python on this kind of machine."""
        python = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"
        return hashlib.sha256("\n".join((python, *self.lines)).encode()).hexdigest()

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def read_requirements(content: bytes) -> Requirements:
    """The requirements of a requirements.txt.

    Raises:
        GnomonError: 422 `bad_requirements`, with the line.

    """
    if len(content) > MAX_BYTES:
        raise _refuse(f"has more than {MAX_BYTES} bytes", "Name only what the handler needs.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refuse("is not UTF-8", "Save it as UTF-8.") from None
    options: list[str] = []
    packages: set[str] = set()
    for line in _logical_lines(text):
        if _is_elsewhere(line):
            raise _refuse(f"says {line[:100]!r}, which is outside of it", "Name packages of an index, or a URL with a version.")
        if line.startswith("-"):
            options.append(line)
        else:
            packages.add(line)
    return Requirements((*options, *sorted(packages)))


def _is_elsewhere(line: str) -> bool:
    """Whether a line means a file of some machine: an option for one, or a path, or a file's URL."""
    return bool(_OTHER_FILE.match(line)) or "file:" in line or ("/" in line and "://" not in line)


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, those that end in a backslash joined with the next."""
    joined = ""
    for line in text.splitlines():
        joined += _COMMENT.sub("", line)
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        if joined.strip():
            yield " ".join(joined.split())
        joined = ""
    if joined.strip():
        yield " ".join(joined.split())


def _refuse(what: str, hint: str) -> GnomonError:
    return GnomonError(422, "bad_requirements", f"function/requirements.txt {what}.", hint)
