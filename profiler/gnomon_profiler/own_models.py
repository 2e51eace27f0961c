"""Your own module, from where you keep it: `package.module:callable` or `path/to/file.py:function`.

The callable takes no arguments and returns the module, or the module and an example of its inputs: a tensor, or a tuple of them,
each with the batch as its first axis. Without an example the shapes of one sample must be given, and the inputs are float32.
Weights that torch draws meanwhile come from a fixed seed, so that a repetition gives the same model.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from gnomon_core.errors import GnomonError, bad_request
from gnomon_profiler.catalog import CatalogModel, seeded
from gnomon_profiler.extractor import Description

_Found = TypeVar("_Found")
_NOT_THEIRS = re.compile(rf"^<|/site-packages/|^{re.escape(__file__)}$|/importlib/__init__\.py$|/pathlib\.py$")
"""Files of a traceback that say nothing of the user's code."""


def load_own(name: str, source: str, shapes: Sequence[Sequence[int]] = ()) -> CatalogModel:
    """The module that a callable returns, with an example of its inputs.

    Raises:
        GnomonError: 400 `invalid_source` for a source that cannot be called or returns something else.

    """
    where, _, attribute = source.rpartition(":")
    if not where or not attribute:
        if not Path(source).exists() and "/" in source:
            raise _invalid(source, f"there is no file {source}")
        raise _invalid(source, "it names no callable; write FILE.py:CALLABLE or MODULE:CALLABLE")
    with seeded():
        found = getattr(_run(source, lambda: _module(where)), attribute, None)
        if not callable(found):
            raise _invalid(source, f"there is no callable {attribute}")
        made = _run(source, found) if not isinstance(found, torch.nn.Module) else found
    module, example = made if isinstance(made, tuple) else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise _invalid(source, f"it returns {type(made).__name__}")
    return CatalogModel(module, examples(source, example, shapes), Description(name, details={"weights": f"from {source}"}))


def examples(source: str, example: Any, shapes: Sequence[Sequence[int]] = ()) -> tuple[Tensor, ...]:
    """Inputs as a tuple of tensors.

    Raises:
        GnomonError: 400 `invalid_source` where there is neither an example nor a shape.

    """
    if shapes:
        return _run(source, lambda: tuple(torch.zeros(1, *shape) for shape in shapes))
    tensors = (example,) if isinstance(example, Tensor) else tuple(example or ())
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.dim() for tensor in tensors):
        raise _invalid(source, "it comes without an example of its inputs")
    return tensors


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(where)
    path = Path(where).resolve(strict=True)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _run(source: str, theirs: Callable[[], _Found]) -> _Found:
    """What the user's code gives, whatever it may raise, also to leave the process.

    Raises:
        GnomonError: 400 `invalid_source`, with where in that code it was.

    """
    try:
        return theirs()
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:250]
        raise _invalid(source, f"{type(error).__name__}: {said}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """Where in the user's code it was raised, or from which line of that; empty where nothing of it ran."""
    frames = [one for one in extract_tb(error.__traceback__) if not _NOT_THEIRS.search(one.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _invalid(source: str, reason: str) -> GnomonError:
    return bad_request(
        "invalid_source",
        f"{source[:200]!r} gives no model: {reason}.",
        "Name a callable, as in mine.py:make, that returns the module and an example of its inputs, "
        "or the module alone and give the shapes of one sample; or a model of the catalog, as in torchvision:resnet50.",
    )
