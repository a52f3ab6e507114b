"""Image files as arrays: rotated upright, converted to the wanted channels, resized, and cropped to the centre."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpitrain.errors import BadInput, library, naming
from mpitrain.flat import Array

if TYPE_CHECKING:
    from PIL import Image

MARGIN = 2  # a JPEG may be decoded at a reduced scale that is still this many times larger than needed
PIXELS = 1 << 26  # most pixels of an image
SLENDER = 64  # images up to so many times as long as wide may have more than PIXELS once they are resized
#: What Pillow would run a program for (PostScript), and what it knows only by name, such as shards.
OTHERS = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}
UNEVEN = ("I", "F")  # modes without a known range of values


def suffixes() -> set[str]:
    """The file name extensions of images, such as .png."""
    library("PIL", "prepare images needs Pillow", "images")
    from PIL import Image

    return {name for name, form in Image.registered_extensions().items() if form in _formats()}


def _formats() -> list[str]:
    """The formats that Pillow decodes itself, without OTHERS."""
    from PIL import Image

    Image.init()
    return [form for form in Image.OPEN if form not in OTHERS]


def load_picture(path: Path, size: int, grey: bool) -> Array:
    """uint8 [h, w, 3], or [h, w, 1] when `grey`; `size` x `size` unless that is 0.

    The image is rotated by its EXIF orientation; of an animation, the first frame is used; transparency becomes white.
    Raises BadInput naming the file.
    """
    from PIL import Image

    with naming(f"{path}: cannot be read", Exception):  # decoders raise many types of errors for damaged files
        if not path.stat().st_size:
            raise BadInput(f"{path}: is empty")
        try:
            with warnings.catch_warnings(action="ignore"), Image.open(path, formats=_formats()) as picture:
                if picture.width * picture.height > PIXELS:
                    raise ValueError(f"{picture.width:,} x {picture.height:,} pixels, more than {PIXELS:,}")
                return _pixels(picture, size, grey)
        except Image.UnidentifiedImageError as error:
            raise BadInput(f"{path}: not an image in a format that Pillow reads") from error


def _pixels(picture: "Image.Image", size: int, grey: bool) -> Array:
    from PIL import Image, ImageOps

    mode = "L" if grey else "RGB"
    if size:
        picture.draft(mode, (MARGIN * size, MARGIN * size))
    upright = ImageOps.exif_transpose(picture)
    if upright.mode.startswith("I;16") or (upright.mode, picture.format) == ("I", "PPM"):  # PGM: scaled to 16 bits
        deep = np.asarray(upright).astype(np.uint16)
        shallow = (deep >> 8).astype(np.uint8)
        shallow[deep == upright.info.get("transparency", -1)] = 255
        upright = Image.fromarray(shallow)
    if upright.mode in UNEVEN:
        raise ValueError(f"pixels of mode {upright.mode}; wanted 8 or 16 bits")
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
    upright = upright.convert(mode)
    pixels = np.asarray(_square(upright, size) if size else upright)
    return pixels[:, :, None] if grey else pixels


def _square(picture: "Image.Image", size: int) -> "Image.Image":
    """Resize the shorter side to `size` and cut out the central square, as in Krizhevsky et al. 2012, §2."""
    from PIL import Image, ImageOps

    longer = size * max(picture.size) // min(picture.size)
    if longer * size > max(PIXELS, SLENDER * size * size):  # a strip of 1 x 1,000,000 would take gigabytes
        raise ValueError(f"its {picture.width:,} x {picture.height:,} pixels would become {size * longer:,}")
    picture = ImageOps.cover(picture, (size, size), Image.Resampling.BICUBIC)
    left, top = (picture.width - size) // 2, (picture.height - size) // 2
    return picture.crop((left, top, left + size, top + size))
