"""From a photograph's bytes to a network's input, and what is said of bytes that are none."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from gnomon_core.errors import GnomonError
from gnomon_runtime.image_input import Preprocess, read_image

PREPROCESS = Preprocess.from_json(
    {"size": 8, "crop_fraction": 0.5, "interpolation": "bilinear", "mean": [127.0, 127.0, 127.0], "std": [128.0, 128.0, 128.0]}
)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture() -> Image.Image:
    """Blue with a red middle half."""
    image = Image.new("RGB", (64, 40), (0, 0, 255))
    image.paste((255, 0, 0), (22, 10, 42, 30))
    return image


def test_the_middle_square_is_cut_resized_and_normalised() -> None:
    result = read_image(encoded(picture()), PREPROCESS)
    assert result.shape == (3, 8, 8)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    assert np.array_equal(result[:, 4, 4], np.array([1.0, -127 / 128, -127 / 128], dtype=np.float32))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_grey_and_coloured_pictures_give_three_channels(kind: str, mode: str) -> None:
    assert read_image(encoded(picture().convert(mode), kind), PREPROCESS).shape == (3, 8, 8)


def test_transparency_and_palettes_are_read() -> None:
    assert read_image(encoded(picture().convert("RGBA")), PREPROCESS).shape == (3, 8, 8)
    assert read_image(encoded(picture().convert("P")), PREPROCESS).shape == (3, 8, 8)


def test_a_camera_held_upright_is_turned() -> None:
    image = Image.new("RGB", (40, 40), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 20, 40))
    exif = Image.Exif()
    exif[0x0112] = 6  # the left of the stored picture is its top
    result = read_image(encoded(image, "JPEG", exif=exif, quality=95), PREPROCESS)
    assert result[0, 0].mean() > 0.9
    assert result[0, 7].mean() < -0.9


def test_a_large_jpeg_is_decoded_small_and_looks_the_same() -> None:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).resize((1600, 1600), Image.Resampling.BICUBIC)
    small = read_image(encoded(coarse, "JPEG", quality=95), PREPROCESS)
    whole = read_image(encoded(coarse), PREPROCESS)
    assert np.abs(small - whole).max() < 0.05


def bomb(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "empty_body"),
        (b"hello", 415, "unsupported_media_type"),
        (b"GIF89a" + bytes(100), 415, "unsupported_media_type"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", 415, "unsupported_media_type"),
        (encoded(picture(), "JPEG")[:200], 422, "broken_image"),
        (encoded(picture(), "PNG")[:60], 422, "broken_image"),
        (bomb(100, 100), 422, "broken_image"),
        (bomb(10_000, 10_000), 413, "image_too_large"),
        (bomb(100_000, 100_000), 413, "image_too_large"),
    ],
)
def test_bytes_that_are_no_photograph_say_what_they_are(body: bytes, status: int, code: str) -> None:
    with pytest.raises(GnomonError) as caught:
        read_image(body, PREPROCESS)
    assert (caught.value.status, caught.value.code) == (status, code)
    assert caught.value.hint
