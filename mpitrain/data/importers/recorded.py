"""Recorded corpora: their options, and how utterances become parts and shards, whatever the format of their files."""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from mpitrain.data.importers.kaldi_archive import table
from mpitrain.data.importers.plan import LARGEST, PIECES, SMALLEST
from mpitrain.data.shards import require_part, utterance_arrays
from mpitrain.data.validation import CLASSES, UNUSABLE, usable
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.sampling.rng import stream
from mpitrain.start import option

NAMED = 20  # most keys that a message names

Where = TypeVar("Where")  #: where the files of an utterance are


@dataclass(frozen=True)
class ImportedUtterance(Generic[Where]):
    """An utterance to import. `frames`: approximate length; `speaker`: "" if unknown; `where`: what `make` reads."""

    key: str
    speaker: str
    frames: int
    where: Where


Utterances: TypeAlias = list[ImportedUtterance[Where]]
Parts: TypeAlias = dict[str, Utterances[Where]]  #: the utterances of each part


@dataclass(frozen=True)
class Chunk(Generic[Where]):
    """The utterances of a shard, and the number of each one's speaker within the part; () if not all are known."""

    utterances: tuple[ImportedUtterance[Where], ...]
    speakers: tuple[int, ...]


def add_parts(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options for the sources of the other splits."""
    option(parser, "--dev SOURCE", f"{what} of the split dev", Path)
    option(parser, "--test [NAME=]SOURCE", "the same of test or test-NAME; repeatable", action="append", default=[])
    moved = "move N speakers of SOURCE to a split, such as dev=10,test=10"
    option(parser, "--split-off SPLIT=N,...", moved, default="")
    option(parser, "--seed", "seed for drawing them; default: 1", int, default=1)


def add_matching(parser: argparse.ArgumentParser) -> None:
    """Add the options for matching labels to frames."""
    option(parser, "--classes", "number of classes; default: the largest label plus one", int)
    option(parser, "--tolerance N", "cut up to N frames if lengths differ; default: 0", int, default=0)


def parts_of(options: argparse.Namespace) -> tuple[dict[str, Path], dict[str, int]]:
    """The source of each split, and the number of training speakers to move to each other split."""
    sources: dict[str, Path] = {"train": options.source}
    if options.dev:
        sources["dev"] = options.dev
    for given in options.test:
        name, named, source = given.partition("=")
        part = f"test-{name}" if named else "test"
        if part in sources:
            raise BadInput(f"--test {given}: {part} is given twice")
        sources[part] = Path(source if named else given)
    held_out: dict[str, int] = {}
    for item in filter(None, options.split_off.split(",")):
        part, _, count = item.partition("=")
        if not count.isascii() or not count.isdigit() or not int(count) or part in held_out or part in sources:
            raise BadInput(f"--split-off {options.split_off}: expected SPLIT=N, each split only once")
        held_out[part] = int(count)
    for part in (*sources, *held_out):
        require_part(part, part)
    return sources, held_out


def speakers_of(folder: Path) -> dict[str, str]:
    """The speaker of each key by a folder's utt2spk; empty if there is no such file. Raises BadInput naming a line that
    is no pair, or that gives a key another speaker."""
    path, found = folder / "utt2spk", dict[str, str]()
    for number, words in table(path) if path.exists() else ():
        if len(words) != 2:
            raise BadInput(f"{path}, line {number}: expected an utterance and its speaker")
        if found.setdefault(words[0], words[1]) != words[1]:
            raise BadInput(f"{path}, line {number}: {words[0]} is there twice")
    return found


def unspoken(source: Path, utterances: Utterances[Where]) -> tuple[str, ...]:
    """The note that utt2spk, in a folder or beside a list, lacks some utterances, so that no speakers are stored."""
    keys = [utterance.key for utterance in utterances if not utterance.speaker]
    path = (source if source.is_dir() else source.parent) / "utt2spk"
    if not keys or not path.exists():
        return ()
    lacking = f"{len(keys):,} of {len(utterances):,} utterances"
    return (f"{path} does not say who speaks {lacking}, such as {keys[0]}: no speakers are stored",)


def split_off(parts: Parts[Where], held_out: Mapping[str, int], seed: int) -> Parts[Where]:
    """Split held-out speakers from the training part: `held_out` speakers, drawn with `seed`, for each other part.
    Raises BadInput if no speaker would be left to train on, or if a speaker is unknown."""
    train = parts["train"]
    speakers = sorted({utterance.speaker for utterance in train})
    if held_out and "" in speakers:
        first = next(utterance.key for utterance in train if not utterance.speaker)
        raise BadInput(f"--split-off: who speaks {first}? The folder's utt2spk does not say")
    if sum(held_out.values()) >= len(speakers) and held_out:
        raise BadInput(
            f"--split-off: {sum(held_out.values())} speakers of {len(speakers)} would leave none to train on"
        )
    drawn = iter(stream(seed, "held-out speakers").permutation(speakers).tolist())
    home = {next(drawn): part for part, count in held_out.items() for _ in range(count)}
    split: Parts[Where] = {"train": [], **{part: [] for part in held_out}}
    for utterance in train:
        split[home.get(utterance.speaker, "train")].append(utterance)
    return split | {part: utterances for part, utterances in parts.items() if part != "train"}


def chunks(parts: Parts[Where], bytes_each: int, whole_speakers: bool = False) -> dict[str, list[Chunk[Where]]]:
    """Divide each part into shards, with frames of `bytes_each`; with `whole_speakers`, no speaker is in two shards.

    Raises BadInput naming a key that is in two parts.
    """
    home: dict[str, str] = {}
    made: dict[str, list[Chunk[Where]]] = {}
    for part, utterances in parts.items():
        for each in utterances:
            if home.setdefault(each.key, part) != part:
                raise BadInput(f"{each.key} is in {home[each.key]} and in {part}")
        names = sorted({each.speaker for each in utterances})
        numbers = {name: number for number, name in enumerate(names)} if "" not in names else {}
        groups = _groups(utterances, bytes_each, whole_speakers)
        made[part] = [Chunk(tuple(own), tuple(numbers[each.speaker] for each in own if numbers)) for own in groups]
    return made


def _groups(utterances: Utterances[Where], bytes_each: int, whole_speakers: bool) -> Iterator[Utterances[Where]]:
    """Groups of about equal size, between SMALLEST and LARGEST bytes."""
    together: dict[str, Utterances[Where]] = {}
    for each in utterances:
        together.setdefault((each.speaker or each.key) if whole_speakers else each.key, []).append(each)
    size = min(max(sum(each.frames for each in utterances) * bytes_each // PIECES, SMALLEST), LARGEST)
    group: Utterances[Where] = []
    held = 0
    for own in together.values():
        added = sum(each.frames for each in own) * bytes_each
        if group and held + added > size:
            yield group
            group, held = [], 0
        group, held = group + own, held + added
    if group:
        yield group


def shard(chunk: Chunk, pairs: Iterable[tuple[Array, Array]]) -> dict[str, Array]:
    """The arrays of a shard from the features [frames, dims] and targets [frames] of its utterances."""
    features, targets = zip(*pairs, strict=True)
    return utterance_arrays(features, targets, chunk.speakers, [utterance.key for utterance in chunk.utterances])


def alike(features: Array, targets: Array, tolerance: int, classes: int | None, where: str) -> tuple[Array, Array]:
    """Truncate both to the length of the shorter one if they differ by up to `tolerance` frames.

    Raises BadInput with `where` for lengths that differ by more, non-finite features and invalid classes.
    """
    if abs(len(features) - len(targets)) > tolerance:
        advice = "" if tolerance else "; --tolerance N cuts up to N frames"
        raise BadInput(f"{where}: {len(features)} frames, but labels for {len(targets)}{advice}")
    frames = min(len(features), len(targets))
    if not frames:
        raise BadInput(f"{where}: no frames")
    features, targets = features[:frames], targets[:frames]
    if not usable(features).all():
        raise BadInput(f"{where}: features {UNUSABLE}")
    limit = classes or CLASSES
    if targets.min() < 0 or targets.max() >= limit:
        worst = targets.min() if targets.min() < 0 else targets.max()
        raise BadInput(f"{where}: a label {worst}, but classes are numbered from 0 to {limit - 1}")
    return features, targets


def without(labelled: Iterable[str], parts: Parts[Where]) -> list[str]:
    """The labelled keys that are in no part."""
    there = {utterance.key for utterances in parts.values() for utterance in utterances}
    return [key for key in labelled if key not in there]


def left_out(keys: list[str], count: int, why: str) -> tuple[str, ...]:
    """A message with the number and names of utterances that are left out; empty if there are none."""
    if not keys:
        return ()
    more = f" and {len(keys) - NAMED:,} more" if len(keys) > NAMED else ""
    return (f"{len(keys):,} of {count:,} utterances {why} and are left out: {', '.join(keys[:NAMED])}{more}",)
