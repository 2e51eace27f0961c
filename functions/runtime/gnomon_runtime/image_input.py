"""Decodes and preprocesses an image into a network's input, as the model's signature describes it.

The middle square of the picture, `crop_fraction` of its shorter side, is resized to `size` and normalised. The format is told
from the bytes, because clients such as `curl --data-binary` send a content type of their own. The size in the header is checked
before any pixel is decoded; a JPEG that is much larger than needed is decoded at half, a quarter or an eighth of its size.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from gnomon_core.errors import GnomonError, bad_request

FORMATS = ("JPEG", "PNG")
MAX_PIXELS = 50_000_000
"""The most pixels of a picture: 150 MB decoded, more than any camera that sends a JPEG."""
_DRAFT_MARGIN = 2
"""A JPEG is decoded no smaller than twice the network's input, so that the resize still averages over several pixels."""
_INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


@dataclass(frozen=True, slots=True)
class Preprocess:
    """The preprocessing of the model's training; `mean` and `std` are of pixels from 0 to 255."""

    size: int
    crop_fraction: float
    interpolation: Image.Resampling
    mean: npt.NDArray[np.float32]
    std: npt.NDArray[np.float32]

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Preprocess:
        return Preprocess(
            size=int(document["size"]),
            crop_fraction=float(document["crop_fraction"]),
            interpolation=_INTERPOLATIONS[str(document["interpolation"])],
            mean=np.asarray(document["mean"], dtype=np.float32),
            std=np.asarray(document["std"], dtype=np.float32),
        )


def read_image(body: bytes | memoryview, preprocess: Preprocess) -> npt.NDArray[np.float32]:
    """The network's input for one picture: three channels, `size` × `size`.

    Raises:
        GnomonError: 400 for no bytes at all, 413 for too many pixels, 415 for what is no JPEG or PNG, 422 for a broken one.

    """
    if not len(body):
        raise bad_request("empty_body", "The request has no body.", "Send a JPEG or a PNG: curl --data-binary @photo.jpg URL")
    image = _open(body)
    try:
        square = _square(image, preprocess)
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise GnomonError(
            422, "broken_image", f"The image cannot be decoded: {str(error)[:200]}.", "Send the complete file."
        ) from error
    pixels = (np.asarray(square, dtype=np.float32) - preprocess.mean) / preprocess.std
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _open(body: bytes | memoryview) -> Image.Image:
    try:
        with warnings.catch_warnings():
            # Pillow warns of pictures above its own bound; ours is checked below, from the header alone.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(body), formats=FORMATS)
    except UnidentifiedImageError:
        raise GnomonError(
            415,
            "unsupported_media_type",
            f"The body is neither a JPEG nor a PNG{_form(body)}.",
            "Send the file's bytes alone, not a form: curl --data-binary @photo.jpg URL",
        ) from None
    except Image.DecompressionBombError:
        raise _too_many() from None
    except (OSError, SyntaxError, ValueError) as error:
        raise GnomonError(
            422, "broken_image", f"The image's header cannot be read: {str(error)[:200]}.", "Send the complete file."
        ) from error
    if image.width * image.height > MAX_PIXELS:
        raise _too_many()
    return image


def _form(body: bytes | memoryview) -> str:
    """A hint where the body is a multipart form, as browsers and `curl -F` send."""
    return ", it begins as a multipart form does" if bytes(body[:2]) == b"--" else ""


def _too_many() -> GnomonError:
    return GnomonError(413, "image_too_large", f"The image has more than {MAX_PIXELS} pixels.", "Send a smaller one.")


def _square(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    draft_side = round(_DRAFT_MARGIN * preprocess.size / preprocess.crop_fraction)
    image.draft("RGB", (draft_side, draft_side))
    image = ImageOps.exif_transpose(image).convert("RGB")
    side = max(1, int(preprocess.crop_fraction * min(image.size)))
    left, top = (image.width - side + 1) // 2, (image.height - side + 1) // 2
    box = (left, top, left + side, top + side)
    return image.resize((preprocess.size, preprocess.size), preprocess.interpolation, box=box)
