"""`prepare glyphs`: letters and digits drawn from fonts, with whole folders of fonts held out.

A folder below SOURCE holds the fonts of one maker, such as those of one Debian package, so that no family of the test
part was trained on. The classes are the 47 of EMNIST's balanced set (Cohen et al. 2017, arXiv:1702.05373), without
small letters that look like their capitals. Size, slant, place, contrast and noise of each image are random.
"""

import argparse
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpitrain.data.importers.plan import CorpusPlan, add_source, shard_slices
from mpitrain.errors import BadInput, library, naming, some
from mpitrain.flat import Array
from mpitrain.sampling.rng import stream
from mpitrain.start import Subparsers, option

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
ABSENT = "\U0010ffff"  # in no font: each draws its sign for missing characters
PARTS = ("train", "dev", "test")
SHARES = {"dev": 0.1, "test": 0.2}  # of the folders; of images, dev gets half as many as test
SIDE, EM, PAPER = 24, 26, 52  # pixels of an image, of a letter's em, and of what it is drawn on
SCALES, SLANT, SHIFT = (0.6, 1.0), 0.3, 2.0  # factors of the em; tangent at most; pixels at most
CONTRAST, NOISE = 80, 24.0  # least grey levels between letter and ground; standard deviation of the noise

Families = list[tuple[str, ...]]  #: the font files of each family
Font = Any  #: Pillow's FreeTypeFont


class GlyphChunk(NamedTuple):
    """Images `start` to `stop` of the `samples` images of a part."""

    part: str
    start: int
    stop: int
    samples: int


def add_parser(sources: Subparsers) -> None:
    """Add `prepare glyphs`."""
    what, source = "letters and digits drawn from fonts", "a folder with a folder of fonts for each maker"
    parser = add_source(sources, "glyphs", what, source, _planned, train=1, test=2, seed=0)
    option(parser, "--train N", "images; default: 100000", int, default=100_000)
    option(parser, "--test N", "test images; default: 20000", int, default=20_000)
    option(parser, "--seed", "seed of the split and of all drawing; default: 1", int, default=1)


def _planned(options: argparse.Namespace) -> CorpusPlan:
    """The plan for a folder of folders of fonts. Raises BadInput naming the folder, or a font."""
    folder, seed = options.source, options.seed
    samples = {"train": options.train, "dev": options.test // 2, "test": options.test}
    library("PIL", "prepare glyphs needs Pillow", "images")
    with naming(folder):
        makers = [found for path in sorted(folder.iterdir()) if path.is_dir() and (found := _families(path))]
    held_out = {part: max(1, round(share * len(makers))) for part, share in SHARES.items()}
    if len(makers) <= sum(held_out.values()):
        there = f"{some(len(makers), 'folder')} with a .ttf or .otf file that has all {len(CHARACTERS)} characters"
        raise BadInput(f"{folder}: {there}; at least 3 are needed, and links do not count")
    order = [makers[place] for place in stream(seed, "order of fonts").permutation(len(makers))]
    families: dict[str, Families] = {}
    for part in reversed(PARTS):
        count = held_out.get(part, len(order))
        families[part], order = [family for maker in order[:count] for family in maker], order[count:]
    chunks = {
        part: [GlyphChunk(part, own.start, own.stop, samples[part]) for own in shard_slices(samples[part], SIDE * SIDE)]
        for part in PARTS
    }
    notes = (", ".join(f"{part}: {some(len(found), 'typeface')}" for part, found in families.items()),)
    paths = {part: [folder / path for family in found for path in family] for part, found in families.items()}
    source = f"glyphs of {some(sum(map(len, families.values())), 'typeface')}"
    attributes = CorpusPlan.described(source, len(CHARACTERS), CHARACTERS)
    make = partial(_shard, folder, families, seed)
    return CorpusPlan("images", attributes, chunks, lambda chunk: paths[chunk.part], make, seed, notes)


def _families(maker: Path) -> Families:
    """The fonts of a folder that have all characters, by family, as paths relative to the folder above."""
    found: dict[str, list[str]] = {}
    for path in sorted(maker.rglob("*")):
        if path.suffix.lower() in (".ttf", ".otf") and path.is_file() and not path.is_symlink():
            font = _font(path)
            with naming(f"{path}: cannot be drawn", Exception):
                complete = _complete(font)
            if complete:
                found.setdefault(str(font.getname()[0]), []).append(str(path.relative_to(maker.parent)))
    return [tuple(paths) for _, paths in sorted(found.items())]


def _complete(font: Font) -> bool:
    """Whether a font has all CHARACTERS, and draws something for each."""
    absent, *drawn = ((mask.size, bytes(mask)) for mask in map(font.getmask, (ABSENT, *CHARACTERS)))
    return all(any(mask) for _, mask in drawn) and absent not in drawn


@lru_cache(maxsize=1024)
def _font(path: Path) -> Font:
    from PIL import ImageFont

    with naming(f"{path}: no font", Exception):  # FreeType's own errors are OSError, Pillow's of several kinds
        return ImageFont.truetype(str(path), EM, layout_engine=ImageFont.Layout.BASIC)


def _shard(folder: Path, families: dict[str, Families], seed: int, chunk: GlyphChunk) -> dict[str, Array]:
    """The arrays of a shard. Held-out images are ordered by family, training images at random."""
    rng = stream(seed, "glyphs", PARTS.index(chunk.part), chunk.start)
    count, own = chunk.stop - chunk.start, families[chunk.part]
    targets = rng.integers(len(CHARACTERS), size=count).astype(np.int32)
    chosen = rng.integers(len(own), size=count)
    if chunk.part != "train":
        chosen = np.arange(chunk.start, chunk.stop) * len(own) // chunk.samples
    images = np.empty((count, SIDE, SIDE), np.float32)
    for image, target, number in zip(images, targets, chosen, strict=True):
        path = folder / own[number][rng.integers(len(own[number]))]
        image[:] = _drawn(_font(path), CHARACTERS[target], rng)
    paper = rng.uniform(0, 255 - CONTRAST, (count, 1, 1))
    images *= rng.uniform(CONTRAST, 255 - paper) / 255
    images += paper + rng.normal(0, NOISE, images.shape)
    return {"images": np.clip(np.rint(images), 0, 255).astype(np.uint8)[..., None], "targets": targets}


def _drawn(font: Font, character: str, rng: np.random.Generator) -> Array:
    """A character in white on black, float32 [SIDE, SIDE], with size, slant and place at random."""
    from PIL import Image, ImageDraw

    page = Image.new("L", (PAPER, PAPER))
    ImageDraw.Draw(page).text((PAPER / 2, PAPER / 2), character, fill=255, font=font, anchor="mm")
    scale, slant = 1 / rng.uniform(*SCALES), rng.uniform(-SLANT, SLANT)
    x, y = rng.uniform(-SHIFT, SHIFT, 2)
    middle = SIDE / 2
    across = (scale, slant * scale, PAPER / 2 - scale * (middle + x) - slant * scale * (middle + y))
    down = (0.0, scale, PAPER / 2 - scale * (middle + y))
    moved = page.transform((SIDE, SIDE), Image.Transform.AFFINE, (*across, *down), Image.Resampling.BILINEAR)
    return np.asarray(moved, np.float32)
