"""Plan shards of Kaldi's features with one integer per frame, such as the pdf-ids of a forced alignment.

Sums for cepstral mean and variance normalisation (CMVN) have Kaldi's form, [2, dims + 1]: sums of the features and the
number of frames, then sums of squares and 0.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpitrain.data.importers import recorded
from mpitrain.data.importers.kaldi_archive import Archives, Pointer, places
from mpitrain.data.importers.plan import CorpusPlan, add_source
from mpitrain.data.importers.recorded import Chunk, ImportedUtterance, Parts, Utterances
from mpitrain.errors import BadInput, library
from mpitrain.flat import Array
from mpitrain.start import Subparsers, option

FLOOR = 1e-20  # smallest variance, as in Kaldi's apply-cmvn


@dataclass(frozen=True)
class KaldiOptions:
    """How utterances are prepared. `cmvn`: none, scp (sums from cmvn.scp), speaker or utterance (their own sums).

    `variance`: also divide by the standard deviation; `tolerance`: number of frames by which the lengths of features
    and alignment may differ; `classes`: None for the highest target plus one.
    """

    cmvn: str
    variance: bool
    tolerance: int
    classes: int | None


class StoredUtterance(NamedTuple):
    """Where an utterance's features, alignment and sums are stored."""

    features: Pointer
    alignment: Pointer
    cmvn: Pointer | None


def add_parser(sources: Subparsers) -> None:
    """Add `prepare kaldi`."""
    what, source = "Kaldi's features and alignments: scp, ark", "data folder with feats.scp, or an scp, or an ark"
    parser = add_source(sources, "kaldi", what, source, _planned, tolerance=0, seed=0)
    alignments = "an integer per frame, for all splits: scp, ark, ark.gz"
    option(parser, "--alignments FILE", alignments, Path, nargs="+", action="extend", required=True)
    recorded.add_parts(parser, "data folder")
    cmvn = "subtract the mean given by cmvn.scp, or that of the speaker or utterance; default: none"
    option(parser, "--cmvn", cmvn, choices=("none", "scp", "speaker", "utterance"), default="none")
    option(parser, "--norm-vars", "with --cmvn: also divide by the standard deviation")
    recorded.add_matching(parser)


def _planned(options: argparse.Namespace) -> CorpusPlan:
    """The plan for the data folder (or scp, or ark) of each part and the alignments of all, matched by key. Raises
    BadInput naming the option or the file."""
    if options.norm_vars and options.cmvn == "none":
        raise BadInput("--norm-vars: goes with --cmvn")
    how = KaldiOptions(options.cmvn, options.norm_vars, options.tolerance, options.classes)
    library("kaldiio", "Kaldi's files need kaldiio", "kaldi")
    sources, held_out = recorded.parts_of(options)
    for path in (*options.alignments, *sources.values()):
        if not path.exists():
            raise BadInput(f"{path}: no such file or folder")
    aligned: dict[str, Pointer] = {}
    for path in options.alignments:
        for key, place in places(path).items():
            if aligned.setdefault(key, place) is not place:
                raise BadInput(f"{path}: {key} is in {aligned[key].path} too")
    parts: Parts[StoredUtterance] = {}
    notes: tuple[str, ...] = ()
    with Archives() as archives:
        for part, source in sources.items():
            parts[part], missing = _utterances(source, aligned, how.cmvn, archives)
            notes += recorded.left_out(missing, len(parts[part]) + len(missing), f"of {source} have no alignment")
            notes += recorded.unspoken(source, parts[part])
        notes += recorded.left_out(recorded.without(aligned, parts), len(aligned), "have an alignment, no features")
        dims = archives.matrix(parts["train"][0].where.features).shape[1]
    parts = recorded.split_off(parts, held_out, options.seed)
    attributes = CorpusPlan.described(f"Kaldi features of {sources['train']}", how.classes)
    prepared = {"cmvn": how.cmvn, "norm_vars": how.variance}
    shards = recorded.chunks(parts, 4 * dims, whole_speakers=how.cmvn == "speaker")
    return CorpusPlan("frames", attributes, shards, _files, partial(_shard, how, dims), (how, dims), notes, prepared)


def _utterances(
    source: Path, aligned: dict[str, Pointer], cmvn: str, archives: Archives
) -> tuple[Utterances[StoredUtterance], list[str]]:
    """The utterances with an alignment, and the keys of those without."""
    folder = source if source.is_dir() else source.parent
    features = places(source / "feats.scp" if source.is_dir() else source)
    speakers = recorded.speakers_of(folder)
    sums = places(folder / "cmvn.scp") if cmvn == "scp" else {}
    found, missing = [], []
    for key, place in features.items():
        if key not in aligned:
            missing.append(key)
            continue
        speaker = speakers.get(key, "")
        own = sums.get(speaker, sums.get(key))
        if cmvn == "speaker" and not speaker:
            raise BadInput(f"--cmvn speaker: who speaks {key}? {folder / 'utt2spk'} does not say")
        if cmvn == "scp" and own is None:
            raise BadInput(f"{folder / 'cmvn.scp'}: has neither {key} nor its speaker {speaker or '(not in utt2spk)'}")
        where = StoredUtterance(place, aligned[key], own)
        found.append(ImportedUtterance(key, speaker, archives.length(aligned[key]), where))
    if not found:
        raise BadInput(f"{source}: none of its {len(missing):,} utterances has an alignment, such as {missing[0]}")
    return found, missing


def _files(chunk: Chunk[StoredUtterance]) -> list[Path]:
    """The archives that hold the utterances of a shard."""
    found = {place.path for utterance in chunk.utterances for place in utterance.where if place is not None}
    return [Path(path) for path in sorted(found)]


def _shard(how: KaldiOptions, dims: int, chunk: Chunk[StoredUtterance]) -> dict[str, Array]:
    """The arrays of a shard. Raises BadInput naming the place."""
    with Archives() as archives:
        pairs = [_pair(utterance, how, dims, archives) for utterance in chunk.utterances]
        if how.cmvn != "none":
            every = zip(pairs, _sums([features for features, _ in pairs], chunk, how.cmvn, archives), strict=True)
            pairs = [(normalise(features, sums, how.variance), targets) for (features, targets), sums in every]
    return recorded.shard(chunk, pairs)


def _pair(
    utterance: ImportedUtterance[StoredUtterance], how: KaldiOptions, dims: int, archives: Archives
) -> tuple[Array, Array]:
    features = archives.matrix(utterance.where.features)
    where = f"{utterance.where.features}: utterance {utterance.key}"
    if features.shape[1] != dims:
        raise BadInput(f"{where}: {features.shape[1]} features a frame, others have {dims}")
    return recorded.alike(features, archives.integers(utterance.where.alignment), how.tolerance, how.classes, where)


def _sums(features: list[Array], chunk: Chunk[StoredUtterance], cmvn: str, archives: Archives) -> list[Array]:
    """The sums by which each utterance is normalised: stored ones, its own, or those over all of its speaker."""
    if cmvn == "scp":
        return [_read_sums(utterance, features[0].shape[1], archives) for utterance in chunk.utterances]
    names = [utterance.speaker if cmvn == "speaker" else utterance.key for utterance in chunk.utterances]
    totals = dict.fromkeys(names, 0.0)
    for name, own in zip(names, features, strict=True):
        totals[name] = totals[name] + sums_of(own)
    return [totals[name] for name in names]


def _read_sums(utterance: ImportedUtterance[StoredUtterance], dims: int, archives: Archives) -> Array:
    place = utterance.where.cmvn
    assert place is not None
    sums = archives.matrix(place, np.float64)
    if sums.shape != (2, dims + 1) or not np.isfinite(sums).all() or sums[0, -1] <= 0:
        raise BadInput(f"{place}: not the sums of some frames of {dims} features, which are 2 by {dims + 1}")
    return sums


def sums_of(features: Array) -> Array:
    """The sums of features [frames, dims] in Kaldi's form, float64 [2, dims + 1]."""
    wide = features.astype(np.float64)
    return np.array([[*wide.sum(0), len(wide)], [*(wide * wide).sum(0), 0]])


def normalise(features: Array, sums: Array, variance: bool) -> Array:
    """Features float32 [frames, dims] minus the mean, divided by the standard deviation if `variance`."""
    mean = sums[0, :-1] / sums[0, -1]
    result = features - mean
    if variance:
        result /= np.sqrt(np.maximum(sums[1, :-1] / sums[0, -1] - mean * mean, FLOOR))
    return result.astype(np.float32)
