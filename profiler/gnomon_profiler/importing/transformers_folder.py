"""A folder of Hugging Face transformers as a model to capture: `config.json` and safetensors, read from disk.

The folder says by `architectures` which of the library's own classes it is for. Code in the folder (`auto_map`), pickled weights
and quantised ones are refused. A text model is captured for sequences of one length. The gateway pads
shorter ones where the model answers them as it would alone, which is tried here; for other models clients pad them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.packaging import import_package
from gnomon_core.signature import Padding
from gnomon_profiler.catalog import CatalogModel
from gnomon_profiler.extractor import Description
from gnomon_profiler.importing.sources import (
    CONFIG,
    PREPROCESSOR,
    SAFETENSORS,
    SAFETENSORS_INDEX,
    TORCH_PICKLES,
    TRANSFORMERS,
    is_address,
    refuse_pickle,
    unreadable,
)

DEFAULT_LENGTH = 128
_MAX_CONFIG_BYTES = 4 << 20
_IMAGE_SIZE = 224
_TASKS_WITH_LABELS = ("Classification", "Segmentation", "Detection")
_OWN = "Build it in a function of your own, which returns the module and an example: --from FILE.py:CALLABLE."
_TOLERANCE = 1e-4
"""The largest difference between the answers to a sequence alone and padded, relative to the largest number."""
_HINT = "Write the folder with model.save_pretrained(FOLDER), which gives config.json and model.safetensors."


def load_transformers(name: str, folder: Path, length: int = 0, *, origin: str = "") -> CatalogModel:
    """The model in a folder. `length` is of a text model's sequences; 0 is 128, or what the model takes at most.

    The model's details name the folder; behind its `origin` where that is an address, whose revision the folder is called.

    Raises:
        GnomonError: 400 `unsafe_source` for code or pickles; 422 `invalid_transformers` for files that are missing or broken; 422
            `unsupported_model` for an architecture of another kind; 400 `invalid_source` for a length that does not fit.

    """
    document = _read_config(folder)
    architecture = _architecture(folder, document)
    _check_weights(folder)
    model, config = _built(folder, architecture)
    named = any(task in architecture for task in _TASKS_WITH_LABELS)
    labels = {"labels": [str(config.id2label[key]) for key in sorted(config.id2label)]} if named else {}
    if model.main_input_name == "input_ids":
        count = _length(config, length)
        names: tuple[str, ...] = ("input_ids", "attention_mask")
        example: tuple[Tensor, ...] = (torch.zeros(1, count, dtype=torch.int64), torch.ones(1, count, dtype=torch.int64))
        details: dict[str, Any] = {"length": count}
    elif length:
        raise bad_request("invalid_source", f"{architecture} takes no text, which has a length.", "Leave out --length.")
    elif model.main_input_name != "pixel_values":
        raise _unsupported(f"{architecture} takes {model.main_input_name}; texts and images are known here.", _OWN)
    else:
        names, (height, width) = ("pixel_values",), _image_size(folder, config)
        example, details = (torch.zeros(1, int(getattr(config, "num_channels", 3)), height, width),), _preprocess(folder)
    module = Named(model, names).eval().requires_grad_(requires_grad=False)
    outputs = _output_names(module, example, architecture)
    if "length" in details and (padding := _padding(module, names, details["length"], config)) is not None:
        details["padding"] = padding.to_json()
    details |= {
        "weights": f"from {f'{origin} at ' if is_address(origin) else ''}{folder.name}",
        "architecture": architecture,
    } | labels
    description = Description(name, details=details, input_names=names, output_names=outputs)
    return CatalogModel(module, example, description, random_inputs=True)


class Named(nn.Module):
    """A model of the library: tensors in the order of some names in, those among its outputs out."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self._names = model, names

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        answer = self.model(**dict(zip(self._names, inputs, strict=True)), return_dict=True)
        return {name: value for name, value in answer.items() if isinstance(value, Tensor)}


def _read_config(folder: Path) -> Mapping[str, Any]:
    document = _read_json(folder / CONFIG)
    if "auto_map" in document or any(folder.glob("modeling_*.py")):
        raise bad_request(
            "unsafe_source",
            f"{folder} has a model class of its own (auto_map, modeling_*.py): loading it would execute the code in the folder.",
            "Take a model whose class transformers has; or, if you trust the code, build the model in a function of your own: "
            "--from FILE.py:CALLABLE.",
        )
    if "quantization_config" in document:
        raise _unsupported(f"{folder} has quantised weights.", "Save it in float32 or float16.")
    return document


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise _invalid(path, f"it has more than {_MAX_CONFIG_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _invalid(path, " ".join(str(error).split())[:200]) from error
    if not isinstance(document, dict):
        raise _invalid(path, "it is not a JSON object")
    return document


def _architecture(folder: Path, document: Mapping[str, Any]) -> str:
    named = document.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    if not architecture:
        raise _invalid(folder / CONFIG, "it names no architecture")
    return architecture


def _check_weights(folder: Path) -> None:
    if (folder / SAFETENSORS).is_file():
        return
    if (folder / SAFETENSORS_INDEX).is_file():
        parts = _read_json(folder / SAFETENSORS_INDEX).get("weight_map")
        for part in sorted({str(file_name) for file_name in parts.values()}) if isinstance(parts, dict) else [""]:
            if "/" in part or "\\" in part or not part.endswith(".safetensors") or not (folder / part).is_file():
                raise _invalid(folder / SAFETENSORS_INDEX, f"it names {part[:100]!r}, which is no safetensors file in the folder")
        return
    pickles = sorted(path.name for suffix in TORCH_PICKLES for path in folder.glob(f"*{suffix}"))
    if pickles:
        error = refuse_pickle(str(folder / pickles[0]), "torch")
        error.hint = "Load it where you trust it and save it again as safetensors: model.save_pretrained(FOLDER)."
        raise error
    raise _invalid(folder, f"it has no {SAFETENSORS}")


def _built(folder: Path, architecture: str) -> tuple[Any, Any]:
    library = import_package(TRANSFORMERS, TRANSFORMERS)
    model_class: Any = getattr(library, architecture, None)
    is_model = isinstance(model_class, type) and issubclass(model_class, library.PreTrainedModel)
    if not is_model:
        raise _unsupported(
            f"transformers {library.__version__} has no model class {architecture[:100]!r}.", f"Install another version. {_OWN}"
        )
    if model_class.can_generate():
        raise _unsupported(
            f"{architecture} generates text step by step, and a layer program runs once for each request.",
            "Serve it from a handler (docs/howto).",
        )
    try:
        model, loading = model_class.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # the library raises many kinds, all of them about the folder
        raise _invalid(folder, " ".join(str(error).split())[:300] or type(error).__name__) from error
    lacking = sorted(map(str, loading["missing_keys"]))
    if lacking:
        raise _invalid(folder, f"its weights lack {len(lacking)} tensors of {architecture}: {', '.join(lacking)[:200]}")
    # No request continues another: what a decoder would keep for the next token is not computed.
    model.config.use_cache = False
    return model, model.config


def _length(config: Any, requested: int) -> int:
    """The asked length if it fits; positions of RoBERTa's family begin behind the padding's number."""
    max_length = getattr(config, "max_position_embeddings", None)
    max_length = int(max_length) if isinstance(max_length, int) and max_length > 0 else DEFAULT_LENGTH
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl", "roberta-prelayernorm"):
        max_length -= int(config.pad_token_id or 0) + 1
    if requested > max_length:
        raise bad_request(
            "invalid_source",
            f"The model takes at most {max_length} tokens, not {requested}.",
            f"Say --length {max_length} or less.",
        )
    return requested or min(max_length, DEFAULT_LENGTH)


def _image_size(folder: Path, config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", None) or _preprocess(folder).get("preprocess", {}).get("size") or _IMAGE_SIZE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def _preprocess(folder: Path) -> dict[str, Any]:
    """Size, mean and deviation of images in pixels from 0 to 255, where the folder has a processor's settings."""
    path = folder / PREPROCESSOR
    document = _read_json(path) if path.is_file() else {}
    size = document.get("crop_size") or document.get("size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    mean, std = document.get("image_mean"), document.get("image_std")
    if not isinstance(size, int) or not isinstance(mean, list) or not isinstance(std, list):
        return {}
    scale = document.get("rescale_factor", 1 / 255)
    return {"preprocess": {"size": size, "mean": [value / scale for value in mean], "std": [value / scale for value in std]}}


def _padding(module: Named, names: tuple[str, ...], length: int, config: Any) -> Padding | None:
    """Padding of shorter sequences; None if padding changes the model's result."""
    short = (length + 1) // 2
    pad_token = int(getattr(config, "pad_token_id", None) or 0)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, int(config.vocab_size), (2, length), generator=generator)
    # Padding's own number means padding wherever it is, also in the middle of a sequence.
    tokens[tokens == pad_token] = (pad_token + 1) % int(config.vocab_size)
    mask = torch.ones_like(tokens)
    padded_tokens, padded_mask = tokens.clone(), mask.clone()
    padded_tokens[:, short:], padded_mask[:, short:] = pad_token, 0
    with torch.no_grad():
        alone = module(tokens[:, :short], mask[:, :short])
        padded = module(padded_tokens, padded_mask)
    by_token: list[str] = []
    for name, right in alone.items():
        answer = padded[name]
        if answer.shape != right.shape:
            by_token.append(name)
            answer = answer[:, :short]
        if answer.shape != right.shape or not (answer - right).abs().max() <= _TOLERANCE * right.abs().max():
            return None
    return Padding(length, dict(zip(names, (pad_token, 0), strict=True)), tuple(by_token)) if short < length else None


def _output_names(module: Named, example: tuple[Tensor, ...], architecture: str) -> tuple[str, ...]:
    try:
        with torch.no_grad():
            names = tuple(module(*example))
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise _unsupported(f"{architecture} does not run on {', '.join(module._names)}: {reason}", _OWN) from error  # noqa: SLF001 - of this module
    if not names:
        raise _unsupported(f"{architecture} gives no tensor.", "Serve it from a handler (docs/howto).")
    return names


def _invalid(path: Path, reason: str) -> GnomonError:
    return unreadable("invalid_transformers", str(path), reason, _HINT)


def _unsupported(message: str, hint: str) -> GnomonError:
    return GnomonError(422, "unsupported_model", message, hint)
