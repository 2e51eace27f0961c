"""The format of a model, by its name and the files in its folder."""

from __future__ import annotations

from pathlib import Path

from gnomon_core.errors import GnomonError, bad_request
from gnomon_profiler.repository import PROGRAM

ONNX, TRANSFORMERS, SKLEARN = "onnx", "transformers", "sklearn"
"""Formats, each named as the extra that reads it."""
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
"""The files of a folder of transformers: the weights are one file, or several and their index."""
_SUFFIXES = {".onnx": ONNX, ".skops": SKLEARN}
_PICKLES = {
    ".pkl": "scikit-learn",
    ".pickle": "scikit-learn",
    ".joblib": "scikit-learn",
    ".pt": "torch",
    ".pth": "torch",
    ".ckpt": "torch",
    ".bin": "torch",
}
TORCH_PICKLES = tuple(suffix for suffix, library in _PICKLES.items() if library == "torch")
_INSTEAD = {
    "scikit-learn": "Write the estimator with skops.io.dump(estimator, 'NAME.skops') and add that file",
    "torch": "Write a FILE.py with a function that builds the module and calls load_state_dict, or save it as safetensors",
}


def is_address(source: str) -> bool:
    """Return whether the source is the address of a model of a hub."""
    return source.lower().startswith(("https://", "http://"))


def format_of(source: str) -> str:
    """The format of the model at a path or a hub's address; empty where it is none of these formats.

    Raises:
        GnomonError: 400 `unsafe_source` for a pickle.

    """
    if is_address(source):
        return TRANSFORMERS
    path = Path(source)
    if path.is_dir():
        return TRANSFORMERS if (path / CONFIG).is_file() and not (path / PROGRAM).is_file() else ""
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise refuse_pickle(source, _PICKLES[suffix])
    if suffix in _SUFFIXES and not path.is_file():
        raise bad_request("invalid_source", f"There is no file {source[:200]}.", "Name a file on this machine.")
    return _SUFFIXES.get(suffix, "")


def refuse_pickle(source: str, library: str) -> GnomonError:
    """400: loading a pickle runs any code that its author put there."""
    return bad_request(
        "unsafe_source",
        f"{source[:200]} is a pickle: loading it would execute the code in it.",
        f"{_INSTEAD[library]}; or, if you trust the file, load it in a function of your own: --from FILE.py:CALLABLE.",
    )


def unreadable(code: str, source: str, reason: str, hint: str) -> GnomonError:
    """422: the file or folder is not a model that can be read."""
    return GnomonError(422, code, f"{source[:200]} cannot be read: {reason}.", hint)
