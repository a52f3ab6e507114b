"""Files made to fill the memory, or to have others read: one line that names them, and little memory."""

import os
import pickle
import resource
import struct
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpitrain.__main__ import main, parser
from mpitrain.data.corpus import Corpus
from mpitrain.data.importers.pickles import read_pickle
from mpitrain.data.shards import shard_name, write_shard
from mpitrain.errors import BadInput

from .alone import imported, read_shard, refused

ALLOWED = 500 << 10  # kB that a refusal may take
NAME = shard_name("train", 0, 1)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """The test takes little memory; the machine is safe from one that fails."""
    limits, before = resource.getrlimit(resource.RLIMIT_DATA), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_DATA, (12 << 30, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ALLOWED


def _refused(tmp_path: Path, words: list[str], line: str, capsys: Any) -> None:
    options = parser("prepare").parse_args(["prepare", *words, str(tmp_path / "out")])
    refused(tmp_path / "out", lambda: options.planning(options), line, capsys)


# ---- recordings


def _recording(folder: Path, rate: int = 8000) -> Path:
    with wave.open(str(folder / "u0.wav"), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(np.arange(1600, dtype=np.int16).tobytes())
    return folder / "u0.wav"


def _wav_refused(tmp_path: Path, line: str, capsys: Any, *more: str) -> None:
    pytest.importorskip("kaldi_native_fbank", reason="extra speech is not installed")
    (tmp_path / "labels").write_text("u0" + " 1" * 18 + "\n")
    _refused(tmp_path, ["wav", str(tmp_path), "--frames", str(tmp_path / "labels"), *more], line, capsys)


@pytest.mark.parametrize("rate", [1, 999, 400_000_000, 2**31 - 1])
def test_sampling_rates_that_no_recording_has(tmp_path: Path, rate: int, capsys: Any) -> None:
    path = _recording(tmp_path, rate)
    _wav_refused(tmp_path, f"{path}: {rate:,} samples a second", capsys)


def test_more_features_than_a_rate_has_room_for(tmp_path: Path, capsys: Any) -> None:
    _recording(tmp_path)
    _wav_refused(tmp_path, "200 log-mel features are too many at 8,000 samples", capsys, "--bins", "200")


def test_a_head_that_promises_a_day_of_samples(tmp_path: Path, capsys: Any) -> None:
    soundfile = pytest.importorskip("soundfile", reason="extra speech is not installed")
    path = tmp_path / "u0.flac"
    soundfile.write(path, np.arange(1600, dtype=np.int16), 8000)
    content = bytearray(path.read_bytes())
    content[21] |= 15  # the upper 4 of 36 bits in STREAMINFO
    content[22:26] = b"\xff" * 4
    path.write_bytes(content)
    _wav_refused(tmp_path, f"{path}: 68,719,476,735 samples by its head", capsys)


@pytest.mark.parametrize("sample", [3e38, -1e20])
def test_samples_louder_than_any_recording(tmp_path: Path, sample: float, capsys: Any) -> None:
    soundfile = pytest.importorskip("soundfile", reason="extra speech is not installed")
    soundfile.write(tmp_path / "u0.wav", np.full(1600, sample), 8000, subtype="FLOAT")
    _wav_refused(tmp_path, f"{tmp_path / 'u0.wav'}: a sample of", capsys)


# ---- Kaldi


def _kaldi(folder: Path, label: int = 3) -> list[str]:
    kaldiio = pytest.importorskip("kaldiio", reason="extra kaldi is not installed")
    features = {"u0": np.ones((4, 3), np.float32)}
    kaldiio.save_ark(str(folder / "f.ark"), features, scp=str(folder / "feats.scp"))
    kaldiio.save_ark(str(folder / "pdf.ark"), {"u0": np.array([0, 1, 2, label], np.int32)})
    return ["kaldi", str(folder), "--cmvn", "none", "--alignments", str(folder / "pdf.ark"), "--tolerance", "1"]


@pytest.mark.parametrize(
    ("pointer", "line"),
    [
        ("{}/f.ark:3[0:3,0:2,0:1]", "f.ark:3: not a Kaldi object: [0:3,0:2,0:1] of an object of shape (4, 3)"),
        ("{}/f.ark:3[0:0:0]", "f.ark:3: not a Kaldi object"),
        ("{}/f.ark:" + "9" * 5000, "feats.scp, line 1: expected a key and where it lies"),
        ("{}/f.ark:3[0:" + "9" * 5000 + "]", "f.ark:3: not a Kaldi object"),
        ("{}/f\0.ark:3", "feats.scp, line 1: not text"),
    ],
)
def test_scripts_that_point_nowhere(tmp_path: Path, pointer: str, line: str, capsys: Any) -> None:
    words = _kaldi(tmp_path)
    (tmp_path / "feats.scp").write_text(f"u0 {pointer.format(tmp_path)}\n")
    _refused(tmp_path, words, line, capsys)


def test_a_label_of_two_thousand_million(tmp_path: Path, capsys: Any) -> None:
    words = _kaldi(tmp_path, 2_000_000_000)
    _refused(tmp_path, words, "u0: a label 2000000000, but classes are numbered from 0 to 16777215", capsys)


def test_many_more_classes_than_samples(tmp_path: Path, capsys: Any) -> None:
    words = _kaldi(tmp_path, 1_000_000)
    options = parser("prepare").parse_args(["prepare", *words, str(tmp_path / "out")])
    with pytest.raises(BadInput, match="1,000,001 classes in a training part"):
        imported(tmp_path / "out", lambda: options.planning(options))
    assert not list((tmp_path / "out").glob("[!.]*.h5"))


@pytest.mark.parametrize(
    "source", ["kaldi x --alignments y --cmvn none", "wav x --frames y", "mnist x", "arrays x --images y"]
)
def test_classes_beyond_any_corpus(source: str, capsys: Any, tmp_path: Path) -> None:
    options = parser("prepare").parse_args(
        ["prepare", *source.split(), str(tmp_path / "out"), "--classes", "2000000000"]
    )
    with pytest.raises(BadInput, match="--classes 2000000000: at least 1, at most 16,777,216"):
        options.planning(options)


# ---- shards


def _shard(path: Path, classes: int = 3, targets: bool = True) -> h5py.File:
    file = h5py.File(path, "w")
    file.attrs["kind"], file.attrs["classes"] = "images", classes
    file.create_dataset("images", data=np.zeros((10, 4, 4, 1), np.uint8), chunks=True, fletcher32=True)
    if targets:
        file.create_dataset("targets", data=np.zeros(10, np.int32), chunks=True, fletcher32=True)
    return file


def _bad(path: Path, reason: str, capsys: Any) -> None:
    assert main(["check", str(path.parent)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"mpitrain: {path}: ") and reason in lines[0]


def test_a_shard_of_a_million_million_classes(tmp_path: Path, capsys: Any) -> None:
    _shard(tmp_path / NAME, 2**40).close()
    _bad(tmp_path / NAME, "attribute classes = 1099511627776: expected a number of classes up to 16,777,216", capsys)


def test_a_shard_of_more_classes_than_it_can_teach(tmp_path: Path) -> None:
    _shard(tmp_path / NAME, 2**24).close()
    with pytest.raises(BadInput, match="16,777,216 classes in a training part of 10 samples"):
        Corpus(tmp_path, "train")


@pytest.mark.parametrize(
    ("shape", "chunks"), [((2**30,), (2**20,)), ((10,), (2**29,)), ((10,), (4,)), ((2**62,), (2**20,))]
)
def test_values_that_were_never_stored(tmp_path: Path, shape: Any, chunks: Any, capsys: Any) -> None:
    with _shard(tmp_path / NAME, targets=False) as file:
        file.create_dataset("targets", shape, np.int32, chunks=chunks, maxshape=(None,), fletcher32=True)
        if chunks == (4,):
            file["targets"][:1] = 1  # one chunk of three
    _bad(tmp_path / NAME, "targets would take", capsys)


def test_offsets_that_rise_only_beyond_the_largest_number(tmp_path: Path) -> None:
    offsets = np.array([0, 2**62, 2**63 - 1, -(2**63) + 5, -(2**62), 10], np.int64)
    arrays = {"features": np.ones((10, 3), np.float32), "targets": np.zeros(10, np.int32), "utterances": offsets}
    with pytest.raises(BadInput, match="utterances must rise"):
        write_shard(tmp_path / NAME, "frames", arrays, {"classes": 2})


# ---- files that have others read


def _elsewhere(folder: Path) -> Path:
    with h5py.File(folder / "secret.h5", "w") as file:
        file.create_dataset("images", data=np.full((10, 4, 4, 1), 7, np.uint8), chunks=True, fletcher32=True)
        file["targets"] = np.zeros(10, np.int32)
    return folder / "secret.h5"


def _crafted(path: Path, how: str) -> None:
    """`images` of what lies elsewhere, and `targets`."""
    secret = _elsewhere(path.parent.parent)
    with h5py.File(path, "w") as file:
        file.attrs["kind"], file.attrs["classes"] = "images", 3
        file.create_dataset("targets", data=np.zeros(10, np.int32), chunks=True, fletcher32=True)
        if how == "external storage":
            file.create_dataset("images", (10, 4, 4, 1), np.uint8, external=[("/etc/passwd", 0, 160)])
        elif how == "virtual":
            layout = h5py.VirtualLayout((10, 4, 4, 1), np.uint8)
            layout[:] = h5py.VirtualSource(str(secret), "images", (10, 4, 4, 1))
            file.create_virtual_dataset("images", layout)
        elif how == "external link":
            file["images"] = h5py.ExternalLink(str(secret), "/images")
        elif how == "pipe":  # which would never be opened to its end
            os.mkfifo(path.parent.parent / "pipe")
            file["images"] = h5py.ExternalLink(str(path.parent.parent / "pipe"), "/images")
        else:
            file["outside"] = h5py.ExternalLink(str(secret), "/")
            file["images"] = h5py.SoftLink("/outside/images")


@pytest.mark.parametrize("how", ["external storage", "virtual", "external link", "soft link", "pipe"])
def test_nothing_is_read_from_other_files(tmp_path: Path, how: str, capsys: Any) -> None:
    (tmp_path / "in").mkdir()
    _crafted(path := tmp_path / "in" / NAME, how)
    reason = "lie in other files" if how in ("external storage", "virtual") else "images is a link into another file"
    _bad(path, reason, capsys)
    _refused(tmp_path, ["arrays", str(path), "--images", "images"], reason, capsys)


def test_links_inside_the_file_are_followed(tmp_path: Path) -> None:
    with _shard(tmp_path / NAME, targets=False) as file:
        file.create_dataset("inner/labels", data=np.zeros(10, np.int32), chunks=True, fletcher32=True)
        file["inner/other"] = h5py.SoftLink("labels")
        file["targets"] = h5py.SoftLink("/inner/other")
    assert len(read_shard(tmp_path / NAME).arrays["targets"]) == 10
    with h5py.File(tmp_path / NAME, "r+") as file:
        del file["inner/other"]
        file["inner/other"] = h5py.SoftLink("/targets")
    with pytest.raises(BadInput, match="targets is a link that does not end"):
        read_shard(tmp_path / NAME)


# ---- pickles


def _nested() -> bytes:
    nested: Any = ((1,), (2,))
    for _ in range(40):
        nested = (nested, nested)
    return pickle.dumps([nested], protocol=2)


@pytest.mark.parametrize(
    "content",
    [
        b"}r" + struct.pack("<I", 2**29) + b".",
        _nested(),
        b"}" + b"\x8b" + struct.pack("<i", 5000) + b"\x7f" * 5000 + b"K\x01s.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
    ],
)
def test_small_pickles_stay_small(content: bytes) -> None:
    with pytest.raises(BadInput, match="batch: not a pickle of arrays"):
        read_pickle(content, Path("batch"))
