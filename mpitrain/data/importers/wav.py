"""Plan shards of log-mel features from audio files and a file of labels."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpitrain.data.importers import recorded
from mpitrain.data.importers.features import ENDINGS, SHIFT, about, frame_centres, log_mel, preparation, read_samples
from mpitrain.data.importers.kaldi_archive import script
from mpitrain.data.importers.labels import UtteranceLabels, classes_of, read_frames, read_segments
from mpitrain.data.importers.plan import CorpusPlan, add_source
from mpitrain.data.importers.recorded import Chunk, ImportedUtterance, Parts, Utterances
from mpitrain.data.importers.walking import files_below
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.start import Subparsers, option


@dataclass(frozen=True)
class RecordingOptions:
    """How recordings are prepared. `background`: class between segments; `tolerance`, `classes`: see KaldiOptions."""

    bins: int
    deltas: bool
    tolerance: int
    classes: int | None
    background: int | None
    rate: int  # sampling rate of all recordings in Hz


class LabelledRecording(NamedTuple):
    """The recording, its labels, and the file with the labels."""

    path: str
    labels: UtteranceLabels
    label_file: str


def add_parser(sources: Subparsers) -> None:
    """Add `prepare wav`."""
    what = "audio files and a file of labels: WAV, FLAC, SPHERE and others"
    source = "folder of recordings, or a list with a key and a path per line"
    parser = add_source(sources, "wav", what, source, _planned, tolerance=0, seed=0, bins=3)
    labels = parser.add_mutually_exclusive_group(required=True)
    option(labels, "--frames FILE", "labels: a key, then one label per frame, on each line", Path)
    option(labels, "--segments FILE", "labels: key, start, end (seconds) and label on each line; or CTM", Path)
    option(parser, "--background LABEL", "label of frames outside all segments; default: such frames are an error")
    recorded.add_parts(parser, "folder or list")
    option(parser, "--bins", "log-mel features per frame; default: 23", int, default=23)
    option(parser, "--deltas", "add first and second order deltas")
    recorded.add_matching(parser)


def _planned(options: argparse.Namespace) -> CorpusPlan:
    """The plan for the folder (or list, with a key and a path per line) of each part and the labels of all, by key.
    Raises BadInput naming the option or the file."""
    if options.background is not None and not options.segments:
        raise BadInput("--background: goes with --segments")
    sources, held_out = recorded.parts_of(options)
    label_file = options.segments or options.frames
    labels, names, fill = _labels(label_file, options.segments is not None, options.background)
    parts: Parts[LabelledRecording] = {}
    notes: tuple[str, ...] = ()
    rates: dict[int, str] = {}
    for part, source in sources.items():
        parts[part], missing = _utterances(source, labels, label_file, rates, options.folder)
        notes += recorded.left_out(missing, len(parts[part]) + len(missing), f"of {source} have no labels")
        notes += recorded.unspoken(source, parts[part])
    notes += recorded.left_out(recorded.without(labels, parts), len(labels), f"of {label_file} have no recording")
    how = RecordingOptions(options.bins, options.deltas, options.tolerance, options.classes, fill, next(iter(rates)))
    silence = np.zeros(how.rate)
    dims = log_mel(silence, how.rate, how.bins, how.deltas).shape[1]  # reports anything that is missing, in one line
    attributes = CorpusPlan.described(f"log-mel features of {sources['train']}", how.classes or len(names), names)
    chunks = recorded.chunks(recorded.split_off(parts, held_out, options.seed), 4 * dims)
    prepared = preparation(how.rate, how.bins, how.deltas)
    return CorpusPlan("frames", attributes, chunks, _files, partial(_shard, how), how, notes, prepared)


def _labels(
    path: Path, segments: bool, background: str | None
) -> tuple[dict[str, UtteranceLabels], list[str], int | None]:
    """The labels of each key, the names of the classes unless they are integers, and the class of the background."""
    numbers: dict[str, int] = {}
    found = (read_segments if segments else read_frames)(path, numbers)
    if not found:
        raise BadInput(f"{path}: is empty")
    fill = None if background is None else numbers.setdefault(background, len(numbers))
    classes, names = classes_of(list(numbers))
    labels = {key: replace(own, targets=classes[own.targets]) for key, own in found.items()}
    return labels, names, None if fill is None else int(classes[fill])


def _utterances(
    source: Path, labels: dict[str, UtteranceLabels], label_file: Path, rates: dict[int, str], shards: Path
) -> tuple[Utterances[LabelledRecording], list[str]]:
    """The utterances with labels, and the keys of those without."""
    recordings = _recordings(source, labels, shards)
    speakers = recorded.speakers_of(source if source.is_dir() else source.parent)
    found = []
    for key, path in recordings.items():
        if key in labels:
            rate, length = about(path)
            rates.setdefault(rate, path)
            if rate != (first := next(iter(rates))):
                raise BadInput(f"{path}: {rate} samples a second, {rates[first]} has {first}")
            where = LabelledRecording(path, labels[key], str(label_file))
            found.append(ImportedUtterance(key, speakers.get(key, ""), int(length / rate / SHIFT), where))
    missing = [key for key in recordings if key not in labels]
    if not recordings:
        raise BadInput(f"{source}: holds no recordings ({', '.join(sorted(ENDINGS))})")
    if not found:
        raise BadInput(f"{source}: none of its {len(missing):,} recordings is in {label_file}, such as {missing[0]}")
    return found, missing


def _recordings(source: Path, labels: dict[str, UtteranceLabels], shards: Path) -> dict[str, str]:
    """The path of each recording by its key: the file name without extension, with folders if the labels use them."""
    if not source.exists():
        raise BadInput(f"{source}: no such folder or list")
    found: dict[str, str] = {}
    if not source.is_dir():
        places = list(script(source))
        if part := next((key for key, place in places if place.offset or place.cut), None):
            raise BadInput(f"{source}: {part} is a part of a file; a list of recordings names whole ones")
        pairs = [(key, place.path) for key, place in places]
    else:
        files = [path for path in files_below(source, shards) if path.suffix.lower() in ENDINGS]
        whole = [path.relative_to(source).with_suffix("").as_posix() for path in files]
        names = [key.rpartition("/")[2] for key in whole]  # if neither has labels, the whole path is the key
        keys = [name if key not in labels and name in labels else key for key, name in zip(whole, names, strict=True)]
        pairs = list(zip(keys, map(str, files), strict=True))
    for key, path in pairs:
        if key in found:
            raise BadInput(f"{path}: is called {key}, as is {found[key]}; labels may name folders too: FOLDER/{key}")
        found[key] = path
    return found


def _files(chunk: Chunk[LabelledRecording]) -> Iterator[Path]:
    """The label file and the recordings."""
    yield from {Path(utterance.where.label_file) for utterance in chunk.utterances}
    yield from (Path(utterance.where.path) for utterance in chunk.utterances)


def _shard(how: RecordingOptions, chunk: Chunk[LabelledRecording]) -> dict[str, Array]:
    """The arrays of a shard. Raises BadInput naming the recording."""
    return recorded.shard(chunk, [_pair(utterance, how) for utterance in chunk.utterances])


def _pair(utterance: ImportedUtterance[LabelledRecording], how: RecordingOptions) -> tuple[Array, Array]:
    where = utterance.where
    samples = read_samples(where.path)
    features = log_mel(samples, how.rate, how.bins, how.deltas)
    times = frame_centres(len(samples), how.rate) / how.rate
    name = f"{where.path}: by {where.label_file}"
    return recorded.alike(features, where.labels.at(times, how.background, name), how.tolerance, how.classes, name)
