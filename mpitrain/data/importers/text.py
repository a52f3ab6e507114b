"""`prepare text`: text files as tokens, which are their bytes, or those of a tokenizer that a file describes."""

import argparse
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from mpitrain.data.importers.plan import LARGEST, PIECES, SMALLEST, CorpusPlan, add_source, read_at, versions
from mpitrain.data.importers.walking import files_below
from mpitrain.data.shards import document_arrays
from mpitrain.errors import BadInput, first_line, library, some
from mpitrain.flat import Array
from mpitrain.sampling.rng import stream
from mpitrain.start import Subparsers, option

LINE = 1 << 16  # bytes in which a line is expected to end
#: Where files may be cut, best first: after a line; before white space, which many tokenizers join to the word that
#: follows; between two characters of UTF-8, which is always found.
CUTS = re.compile(rb"\n"), re.compile(rb"(?<=\S)(?=\s)"), re.compile(rb"\A[\x80-\xbf]{0,3}")
FEW = 1 << 16  # up to this many different tokens are stored as uint16


class TextPiece(NamedTuple):
    """Bytes of a file."""

    path: str
    start: int
    stop: int


def add_parser(sources: Subparsers) -> None:
    """Add `prepare text`."""
    what, source = "text files as tokens: bytes, or a tokenizer's", "a file, or a folder, of which all files are taken"
    parser = add_source(sources, "text", what, source, _planned, nargs="+", seed=0)
    option(parser, "--ending .py", "of folders only files that end so; default: all", default="")
    option(parser, "--tokenizer FILE", "tokenizer.json of the package tokenizers; default: bytes", Path)
    option(parser, "--dev SHARE", "fraction of the bytes to hold out; default: 0.05", float, default=0.05)
    option(parser, "--test SHARE", "the same for test; default: 0.05", float, default=0.05)
    option(parser, "--seed", "seed of the order of the files; default: 1", int, default=1)


def _planned(options: argparse.Namespace) -> CorpusPlan:
    """The plan for files, each a document. Whole files are held out; of a single file, the end of its text. Raises
    BadInput naming an option, a file, or a part for which there is too little text."""
    shares = {"dev": options.dev, "test": options.test}
    for part, share in shares.items():
        if not 0 <= share < 1 or sum(shares.values()) >= 1:
            raise BadInput(f"--{part} {share:g}: expected a share of the bytes below 1")
    files = list(_files(options.source, options.ending, options.folder))
    if not files:
        raise BadInput(f"{', '.join(map(str, options.source))}: no file of text ends in {options.ending}")
    classes, how, tokenizer = 256, "bytes", options.tokenizer
    if tokenizer is not None:
        classes = max(_tokenizer(tokenizer).get_vocab().values()) + 1
        how = f"{tokenizer.name} {xxhash.xxh3_64_hexdigest(tokenizer.read_bytes())}"
    every = versions(files)
    documents = [TextPiece(str(path), 0, found.size) for path, found in every.items() if found.size]
    if not documents:
        raise BadInput("prepare text: no file of text")
    documents = [documents[place] for place in stream(options.seed, "order of texts").permutation(len(documents))]
    chunks = {part: list(_chunks(pieces)) for part, pieces in _divided(documents, shares).items()}
    left = len(every) - len(documents)
    attributes = CorpusPlan.described(f"{some(len(documents), 'document')} of text", classes)
    of_chunk, make = partial(_sources, tokenizer), partial(_shard, tokenizer)
    notes = (f"left out {some(left, 'empty file')}",) if left else ()
    return CorpusPlan("tokens", attributes, chunks, of_chunk, make, how, notes, {"tokens": how})


def _files(sources: Iterable[Path], ending: str, shards: Path) -> Iterator[Path]:
    for source in sources:
        if source.is_dir():
            yield from (path for path in files_below(source, shards) if path.name.endswith(ending))
        else:
            yield source


def _divided(documents: list[TextPiece], shares: dict[str, float]) -> dict[str, list[TextPiece]]:
    """Divide documents, in their order, among the parts train, dev and test."""
    total, begun = sum(piece.stop for piece in documents), 0
    there = f"{total:,} bytes in {some(len(documents), 'document')}"
    wanted = {"train": 1 - shares["dev"] - shares["test"], "dev": 1 - shares["test"], "test": 1.0}
    ends = {part: round(share * total) for part, share in wanted.items()}
    if len(documents) == 1:
        path = documents[0].path
        cuts = [0, *(min(_cut(path, end), total) for end in ends.values())]
        documents = [TextPiece(path, start, stop) for start, stop in pairwise(cuts) if start < stop]
    parts: dict[str, list[TextPiece]] = {part: [] for part in ends}
    for piece in documents:
        parts[next(part for part, end in ends.items() if begun < end)].append(piece)
        begun += piece.stop - piece.start
    for part, chosen in parts.items():
        if not chosen and (part == "train" or shares[part]):
            remedy = "smaller --dev and --test" if part == "train" else f"a larger --{part}, or 0"
            raise BadInput(f"prepare text: {there} leave none for part {part}; give {remedy}")
    return {part: chosen for part, chosen in parts.items() if chosen}


def _chunks(pieces: list[TextPiece]) -> Iterator[list[TextPiece]]:
    """Divide the pieces of a part into shards of about equal size."""
    total = sum(piece.stop - piece.start for piece in pieces)
    room = size = max(min(max(total // PIECES, SMALLEST // 2), LARGEST // 2), 1)
    chunk: list[TextPiece] = []
    for piece in pieces:
        while piece.stop - piece.start > room:
            if room:
                cut = _cut(piece.path, piece.start + room)
                if cut >= piece.stop:
                    break
                chunk.append(piece._replace(stop=cut))
                piece = piece._replace(start=cut)
            yield chunk
            chunk, room = [], size
        chunk.append(piece)
        room = max(room - (piece.stop - piece.start), 0)
    if chunk:
        yield chunk


def _cut(path: str, place: int) -> int:
    """Where to cut a file, at byte number `place` or at most LINE after it: at the first of CUTS that is found."""
    ahead = read_at(path, place, LINE)
    return place + next(found.end() for cut in CUTS if (found := cut.search(ahead)))


def _sources(tokenizer: Path | None, chunk: list[TextPiece]) -> list[Path]:
    own = [Path(path) for path, _ in groupby(piece.path for piece in chunk)]
    return own if tokenizer is None else [*own, tokenizer]


def _shard(tokenizer: Path | None, chunk: list[TextPiece]) -> dict[str, Array]:
    texts = [read_at(piece.path, piece.start, piece.stop - piece.start) for piece in chunk]
    nbytes = [len(text) for text in texts]
    if tokenizer is None:
        return document_arrays([np.frombuffer(text, np.uint8).astype(np.uint16) for text in texts], nbytes)
    encode = _tokenizer(tokenizer)
    classes = max(encode.get_vocab().values()) + 1
    decoded = (_decoded(text, piece) for text, piece in zip(texts, chunk, strict=True))
    found = [encode.encode(text, add_special_tokens=False).ids for text in decoded]
    return document_arrays([np.array(ids, np.uint16 if classes <= FEW else np.uint32) for ids in found], nbytes)


def _decoded(text: bytes, piece: TextPiece) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        place = f"{piece.path}: not UTF-8 at byte {piece.start + error.start:,}"
        raise BadInput(f"{place}, and a tokenizer needs letters: convert it, or import bytes") from error


def _tokenizer(path: Path) -> Any:
    if not path.is_file():
        raise BadInput(f"--tokenizer {path}: no such file")
    tokenizers = library("tokenizers", "prepare text --tokenizer needs tokenizers", "text")
    try:
        found = tokenizers.Tokenizer.from_file(str(path))
        found.no_truncation()  # documents are whole
        found.no_padding()
        return found
    except Exception as error:  # its errors have no common class: the library is not written in Python
        raise BadInput(f"--tokenizer {path}: {first_line(error)}") from error
