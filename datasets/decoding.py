"""Images of files in the usual formats, decoded once and then kept in the cache."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.cache import SourceError, cache_dir, find_named, store_named
from datasets.errors import DataError
from datasets.limits import check_values

log = logging.getLogger(__name__)

VERSION = 2  # in the names of what is kept; raise it when the same images give other numbers
#: What Pillow may take an image for; of others some start a program, as PostScript does.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
GRAY = {"1", "L", "LA"}  # modes of Pillow with 8 bits or fewer
COLOR = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}  # others have more bits
Named = tuple[str, bytes]


def decoded(raw: Sequence[Named]) -> NDArray[np.uint8]:
    """Return decoded images from the cache, or decode and keep them; see `decode`."""
    hasher = hashlib.sha256()
    for _, one in raw:
        hasher.update(hashlib.sha256(one).digest())
    target = cache_dir("images") / f"{hasher.hexdigest()}-{VERSION}.npy"
    try:
        kept: NDArray[np.uint8] = np.load(find_named(target), allow_pickle=False)
        return kept
    except (SourceError, OSError, ValueError) as error:
        log.debug("images are decoded: %s", error)
    pixels = decode(raw)
    try:
        store_named(target, lambda part: np.save(part, pixels, allow_pickle=False))
    except SourceError as error:  # the images are there, and will be decoded again the next time
        log.warning("%s", error)
    return pixels


def decode(raw: Sequence[Named]) -> NDArray[np.uint8]:
    """Decode images of one size, upright as their EXIF orientation says.

    Parameters
    ----------
    raw : sequence of (str, bytes)
        What each is called in messages, and its bytes.

    Returns
    -------
    ndarray
        ``(n, channels, height, width)``; one channel if no image has color.

    Raises
    ------
    DataError
        If one is no image, has another size than the first, or holds what would be lost: transparent pixels, more
        than 8 bits a channel, or several images.
    """
    color = any(_opened(where, one).mode not in GRAY for where, one in raw)
    pixels: NDArray[np.uint8] | None = None
    for place, (where, one) in enumerate(raw):
        plain = _plain(where, _opened(where, one), "RGB" if color else "L")
        if pixels is None:
            shape = (3 if color else 1, *plain.shape[:2])
            check_values("the images", len(raw) * int(np.prod(shape)))
            pixels = np.empty((len(raw), *shape), np.uint8)
        if plain.shape[:2] != pixels.shape[2:]:
            height, width = plain.shape[:2]
            first_height, first_width = pixels.shape[2:]
            raise DataError(
                f"{where} has {width} x {height} pixels, and {raw[0][0]} has {first_width} x {first_height}; "
                "make all images of one size"
            )
        pixels[place] = plain.transpose(2, 0, 1) if color else plain
    assert pixels is not None
    return pixels


def _opened(where: str, raw: bytes) -> Any:
    from PIL import Image, UnidentifiedImageError  # slow to import; most data sets do without it

    try:
        image = Image.open(io.BytesIO(raw), formats=FORMATS)
    except Exception as error:  # a damaged file may raise anything
        why = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
        raise DataError(f"{where} is no image that can be read{why}") from error
    if image.mode not in GRAY | COLOR:
        raise DataError(f"{where} has more than 8 bits a channel (mode {image.mode}); save it with 8")
    return image


def _plain(where: str, image: Any, mode: str) -> NDArray[np.uint8]:
    """Return the pixels of an image, ``(height, width)`` or ``(height, width, 3)``."""
    from PIL import ImageOps  # slow to import; most data sets do without it

    try:
        frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # a photo and its previews
        image = ImageOps.exif_transpose(image)
        clear = image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema()[0] < 255
        pixels: NDArray[np.uint8] = np.asarray(image.convert(mode))
    except Exception as error:  # a damaged file may raise anything
        raise DataError(f"{where} cannot be read as an image: {error}") from error
    if frames > 1:
        raise DataError(f"{where} holds {frames} images; save the one that counts")
    if clear:
        raise DataError(f"{where} has transparent pixels, whose color nobody sees; save it on a background")
    return pixels
