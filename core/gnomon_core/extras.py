"""How somebody gets what an installation of Gnomon lacks: one sentence for all hints.

Gnomon is installed from a clone of its repository; what is called `gnomon` in an index of packages is somebody else's. Its parts
are the extras of pyproject.toml.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """What to do for this extra, such as `models`: a sentence."""
    return f"In a clone of Gnomon, in the environment that runs it: pip install '.[{extra}]'."
