"""What layer blocks are called: by the module they come from, else by their first and last value.

A block that holds all of a module has its path, `layer1.0`; one that holds parts of several has the first and the last path with
work in it, `features.0..features.4`. No name is given twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gnomon_profiler.flow import Flow


def block_names(flow: Flow, pieces: Sequence[tuple[int, int]], modules: Sequence[str], macs: Sequence[int]) -> list[str]:
    """One name for each piece, given as its first operation and the one after its last."""
    names = [_by_module(piece, flow, modules, macs) or _by_values(piece, flow) for piece in pieces]
    taken: Counter[str] = Counter()
    found = []
    for name in names:
        taken[name] += 1
        found.append(name if taken[name] == 1 else f"{name}#{taken[name]}")
    return found


def _by_module(piece: tuple[int, int], flow: Flow, modules: Sequence[str], macs: Sequence[int]) -> str:
    begin, end = piece
    if not any(modules):
        return ""
    inside = [path for path in modules[begin:end] if path]
    if not inside:
        return ""
    whole = _common(inside)
    outside = (*modules[:begin], *modules[end:])
    if whole and not any(_within(path, whole) for path in outside):
        return whole
    working = [modules[at] for at in range(begin, end) if modules[at] and (macs[at] or flow.weights[at])] or inside
    return working[0] if working[0] == working[-1] else f"{working[0]}..{working[-1]}"


def _common(paths: Sequence[str]) -> str:
    """The longest path that is the beginning of all, in whole steps: layer1.0 of layer1.0.conv1 and layer1.0.bn1."""
    steps = [path.split(".") for path in paths]
    shared = []
    for names in zip(*steps, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def _within(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _by_values(piece: tuple[int, int], flow: Flow) -> str:
    named = [results[0] for results in flow.results[slice(*piece)] if results]
    return named[0] if len(named) == 1 else f"{named[0]}..{named[-1]}" if named else f"operations {piece[0]}..{piece[1] - 1}"
