"""Downloads a model of a Hugging Face hub, or of a server that speaks its protocol, named by the address of the model's page.

    https://HUB/ORGANISATION/NAME[/tree/REVISION]  ─▶  a folder of transformers in the hub library's cache

The configuration and safetensors are downloaded alone: neither code nor pickles. The library keeps the files in its cache
(`HF_HOME`), goes on where an interrupted download was, and downloads nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.packaging import import_package
from gnomon_profiler.importing.sources import (
    CONFIG,
    PREPROCESSOR,
    SAFETENSORS,
    SAFETENSORS_INDEX,
    TORCH_PICKLES,
    TRANSFORMERS,
    refuse_pickle,
)

_SETTINGS = (CONFIG, PREPROCESSOR)
_REPORT_EVERY_S = 3.0
_PARTS_OF_A_NAME = 2
_EXAMPLE = "https://huggingface.co/ORGANISATION/NAME"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of a hub at a revision: a branch, a tag or a commit."""

    endpoint: str
    name: str
    revision: str = "main"


def parse_address(address: str) -> HubModel:
    """The model that an address names.

    Raises:
        GnomonError: 400 `invalid_source`, it is not the address of a model's page.

    """
    try:
        parts = urlsplit(address)
        path, marker, revision = unquote(parts.path).strip("/").partition("/tree/")
        segments = path.split("/")
        host = parts.hostname
    except ValueError:
        host, segments, marker, revision = None, [], "", ""
    if (
        not host
        or not all(segments)
        or segments[-1] == "tree"
        or parts.query
        or parts.fragment
        or parts.username
        or (marker and not revision)
    ):
        raise bad_request("invalid_source", f"{address[:200]!r} is not a model's address.", f"Say {_EXAMPLE}, for example.")
    if Path(segments[-1]).suffix.lower() in (".onnx", ".skops", ".safetensors", ".bin", ".pt", ".pth"):
        raise bad_request("invalid_source", f"{address[:200]} is one file.", "Download it, and name the file on this machine.")
    base = "/".join((parts.netloc, *segments[:-_PARTS_OF_A_NAME]))
    return HubModel(f"{parts.scheme}://{base}", "/".join(segments[-_PARTS_OF_A_NAME:]), revision or "main")


def download(address: str, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the model's files. `progress` gets a line for each file and every three seconds of a download.

    The library's login, or `HF_TOKEN`, goes to the hub for which it is set up (`HF_ENDPOINT`) and to no other.

    Raises:
        GnomonError: 400 `invalid_source` or `unsafe_source`; 404 `model_not_found`, the hub has no such model, or shows it to
            nobody without a login; 422 `invalid_transformers`, there are no safetensors; 502 `hub_unreachable`.

    """
    model = parse_address(address)
    library, constants, errors, utils = (
        import_package(f"huggingface_hub{part}", TRANSFORMERS) for part in ("", ".constants", ".errors", ".utils")
    )
    own = model.endpoint.rstrip("/") == constants.ENDPOINT.rstrip("/")
    token = None if own else False
    try:
        found = library.HfApi(endpoint=model.endpoint, token=token).model_info(model.name, revision=model.revision)
        names = _needed(address, {str(sibling.rfilename) for sibling in found.siblings or ()})
        for number, name in enumerate(names, 1):
            step = f"downloading {name} ({number} of {len(names)})"
            progress(step)
            bar = _reporting(utils.tqdm, step, progress)
            path = library.hf_hub_download(
                model.name,
                name,
                revision=found.sha,
                endpoint=model.endpoint,
                token=token,
                tqdm_class=bar,
            )
    except errors.HfHubHTTPError as error:
        raise _refused(address, error) from error
    except (OSError, errors.HTTPError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise GnomonError(
            502, "hub_unreachable", f"{address[:200]} cannot be downloaded: {reason}", "Try again: it goes on where it was."
        ) from error
    return Path(path).parent


def _needed(address: str, names: set[str]) -> Sequence[str]:
    """The files to download, the small ones first."""
    settings = [name for name in _SETTINGS if name in names]
    if SAFETENSORS in names:
        return [*settings, SAFETENSORS]
    parts = sorted(name for name in names if "/" not in name and name.startswith("model-") and name.endswith(".safetensors"))
    if SAFETENSORS_INDEX in names and parts:
        return [*settings, SAFETENSORS_INDEX, *parts]
    pickles = sorted(name for name in names if name.endswith(TORCH_PICKLES))
    if pickles:
        raise refuse_pickle(f"{address}: {pickles[0]}", "torch")
    raise GnomonError(
        422, "invalid_transformers", f"{address[:200]} has no {SAFETENSORS}.", "Choose a model of transformers with safetensors."
    )


def _refused(address: str, error: Any) -> GnomonError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403, 404):
        return GnomonError(
            404,
            "model_not_found",
            f"The hub shows no model {address[:200]} (status {status}).",
            "Check the name and the revision; for a model that needs a login, set HF_TOKEN, and HF_ENDPOINT to its hub.",
        )
    reason = " ".join(str(error).split())[:300]
    return GnomonError(502, "hub_unreachable", f"{address[:200]} cannot be downloaded: {reason}", "Try again later.")


def _reporting(bar: type[Any], step: str, progress: Callable[[str], None]) -> type[Any]:
    """The library's progress bar, which tells the downloaded share in a line instead of drawing it."""

    class Reporting(bar):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings | {"disable": False, "mininterval": _REPORT_EVERY_S})

        def display(self, *_: Any, **__: Any) -> None:
            if self.total and 0 < self.n < self.total:
                progress(f"{step}: {self.n / self.total:.0%}")

    return Reporting
