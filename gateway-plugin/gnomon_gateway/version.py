"""The version of Gnomon: the installed release and, in a source tree, its commit."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Version:
    """A release and the commit that it was made from; neither is ever empty."""

    release: str
    sha: str


def this_version() -> Version:
    """The version that is running."""
    try:
        release = version("gnomon")
    except PackageNotFoundError:
        release = UNKNOWN
    return Version(release, _commit(Path(__file__).resolve().parents[2]) or UNKNOWN)


def _commit(root: Path) -> str:
    """The commit of a source tree, read from its files so that no git need be installed; "" where there is none."""
    git = root / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        reference = head.removeprefix("ref: ")
        if reference == head:
            return head
        loose = git / reference
        if loose.is_file():
            return loose.read_text(encoding="ascii").strip()
        packed = (git / "packed-refs").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return ""
    return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), "")
