"""Your own module, from where you keep it: `package.module:callable` or `path/to/file.py:function`.

The callable takes no arguments and returns the module, or the module and an example of its inputs: a tensor, or a tuple of them,
each with the batch as its first axis. Without an example the shapes of one sample must be given, and the inputs are float32.
Weights that torch draws meanwhile come from a fixed seed, so that a repetition gives the same model.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gnomon_core.errors import GnomonError, bad_request
from gnomon_profiler.catalog import CatalogModel, seeded
from gnomon_profiler.extractor import Description


def load_own(name: str, source: str, shapes: Sequence[Sequence[int]] = ()) -> CatalogModel:
    """The module that a callable returns, with an example of its inputs.

    Raises:
        GnomonError: 400 `invalid_source` for a source that cannot be called or returns something else.

    """
    where, _, attribute = source.rpartition(":")
    if not where or not attribute:
        raise _invalid(source, "it names no callable")
    with seeded():
        found = getattr(_module(source, where), attribute, None)
        if not callable(found):
            raise _invalid(source, f"there is no callable {attribute}")
        made = found() if not isinstance(found, torch.nn.Module) else found
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
        return tuple(torch.zeros(1, *shape) for shape in shapes)
    tensors = (example,) if isinstance(example, Tensor) else tuple(example or ())
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.dim() for tensor in tensors):
        raise _invalid(source, "it comes without an example of its inputs")
    return tensors


def _module(source: str, where: str) -> ModuleType:
    try:
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
    except (ImportError, OSError) as error:
        raise _invalid(source, str(error)) from error
    return module


def _invalid(source: str, reason: str) -> GnomonError:
    return bad_request(
        "invalid_source",
        f"{source[:200]!r} gives no model: {reason[:300]}.",
        "Name a callable, as in mine.py:make, that returns the module and an example of its inputs, "
        "or the module alone and give the shapes of one sample; or a model of the catalog, as in torchvision:resnet50.",
    )
