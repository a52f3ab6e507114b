"""Spoilt copies of small corpora, imported one after the other: `mutated.py FORMAT,... FIRST COUNT FOLDER`.

It prints each seed before its file is tried, and at the end a line of JSON: how many were refused, what was said that
is not one line naming a file, and the most memory that was ever taken. It runs in a process of its own, which may hang
or die of a file.
"""

import gzip
import io
import json
import pickle
import re
import resource
import shlex
import shutil
import sys
import tarfile
import traceback
import warnings
import wave
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH may leave it out
from alone import Alone, read_shard

from mpitrain.__main__ import parser
from mpitrain.data.corpus import Corpus
from mpitrain.data.importers.importing import Importing
from mpitrain.data.origin import of_part
from mpitrain.data.shards import shard_name, write_shard
from mpitrain.errors import BadInput

LIMIT = 6 << 30  # bytes of data: protects the machine; the test is of what was taken
HEAD = 96  # bytes at the beginning, where half of the changes are
EXTREMES = (0, -1, 1, 2**15, 2**16, 2**31 - 1, 2**31, 2**36, 2**63 - 1, 2**63)
WORDS = (b"0", b"-1", b"2000000000", b"4294967296", b"9" * 5000, b"nan", b"1e400", b"", b"0:5,0:2,0:1", b"\0", b"\xff")


# ---- corpora: each writes its files into a folder, and gives the command line after `prepare`


def kaldi(folder: Path, text: bool = False, compression: int = 0, cmvn: str = "speaker") -> str:
    """Archives and scripts, with speakers and alignments."""
    import kaldiio

    rng, keys = np.random.default_rng(1), [f"s{n // 2}-u{n}" for n in range(6)]
    features = {key: rng.normal(2, 3, (6, 3)).astype(np.float32) for key in keys}
    sums = {f"s{n}": np.array([[1, 2, 3, 12], [9, 9, 9, 0]], np.float64) for n in range(3)}
    aligned = {key: rng.integers(0, 7, 6).astype(np.int32) for key in keys}
    how = {"text": text, **({"compression_method": compression} if compression else {})}
    kaldiio.save_ark(str(folder / "f.ark"), features, scp=str(folder / "feats.scp"), **how)
    kaldiio.save_ark(str(folder / "c.ark"), sums, scp=str(folder / "cmvn.scp"), text=text)
    kaldiio.save_ark(str(folder / "pdf.ark"), aligned, scp=str(folder / "pdf.scp"), text=text)
    (folder / "utt2spk").write_text("".join(f"{key} {key[:2]}\n" for key in keys))
    return f"kaldi {folder} --alignments {folder / 'pdf.scp'} --cmvn {cmvn}"


def kaldi_packed(folder: Path) -> str:
    """Alignments in a gzipped archive, features in an archive without script."""
    kaldi(folder)
    content = (folder / "pdf.ark").read_bytes()
    (folder / "pdf.ark.gz").write_bytes(gzip.compress(content, mtime=0))
    for name in ("pdf.ark", "pdf.scp", "feats.scp", "c.ark", "cmvn.scp"):
        (folder / name).unlink()
    return f"kaldi {folder / 'f.ark'} --alignments {folder / 'pdf.ark.gz'} --cmvn none"


def wav(folder: Path, ending: str = "wav", segments: bool = True) -> str:
    """Recordings of 0.2 s, and their labels."""
    import soundfile

    rng = np.random.default_rng(2)
    (folder / "audio").mkdir()
    for number in range(3):
        samples, path = rng.integers(-9000, 9000, 1600, np.int16), folder / "audio" / f"u{number}.{ending}"
        if ending == "wav":
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, 8000, 0, "NONE", ""))
                file.writeframes(samples.tobytes())
        else:
            soundfile.write(path, samples, 8000)
    rows = [f"u{n} 0 0.1 a\nu{n} 0.1 0.2 {n}\n" if segments else f"u{n}{' 3 0 5' * 6}\n" for n in range(3)]
    (folder / "labels.txt").write_text("".join(rows))
    (folder / "audio" / "utt2spk").write_text("u0 s0\nu1 s0\nu2 s1\n")
    more = "--segments" if segments else "--frames"
    return f"wav {folder / 'audio'} {more} {folder / 'labels.txt'} --tolerance 2"


def floats(folder: Path) -> str:
    """Recordings of floating point numbers."""
    import soundfile

    words = wav(folder)
    for path in (folder / "audio").glob("*.wav"):
        soundfile.write(path, np.linspace(-1, 1, 1600), 8000, subtype="FLOAT")
    return words


def mnist(folder: Path, packed: bool = False) -> str:
    """IDX files."""
    rng = np.random.default_rng(3)
    for name in ("train", "t10k"):
        for array, what in ((rng.integers(0, 256, (7, 5, 4)), "images"), (rng.integers(0, 10, 7), "labels")):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            content, path = head + array.astype(np.uint8).tobytes(), folder / f"{name}-{what}-idx{array.ndim}-ubyte"
            path.write_bytes(content) if not packed else path.with_name(path.name + ".gz").write_bytes(
                gzip.compress(content, mtime=0)
            )
    return f"mnist {folder}"


def cifar(folder: Path, form: str = "folder", binary: bool = False) -> str:
    """Two images a batch."""
    files, rng = dict[str, bytes](), np.random.default_rng(4)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        pixels, labels = rng.integers(0, 256, (2, 3072)).astype(np.uint8), [3, 4]
        rows = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)
        batch = {b"data": pixels, b"labels": labels}
        files[name + ".bin" * binary] = rows.tobytes() if binary else pickle.dumps(batch, protocol=2)
    names = [f"name{n}" for n in range(10)]
    files["batches.meta" + ".txt" * binary] = (
        "\n".join(names).encode() if binary else pickle.dumps({"label_names": names}, protocol=2)
    )
    if form == "folder":
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return f"cifar10 {folder}"
    with tarfile.open(folder / f"c.{form}", "w:gz" if form == "tar.gz" else "w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"inner/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return f"cifar10 {folder / f'c.{form}'}"


def images(folder: Path, ending: str = "png") -> str:
    """Two classes of small pictures."""
    from PIL import Image

    for number in range(6):
        path = folder / "ab"[number % 2] / f"{number}.{ending}"
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 9, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(path)
    return f"images {folder}"


def text(folder: Path) -> str:
    """Files of a few lines."""
    for number in range(6):
        letters = np.random.default_rng(number).integers(97, 123, 50).astype(np.uint8)
        letters[9::10] = ord("\n")
        (folder / f"{number}.txt").write_bytes(letters.tobytes())
    return f"text --dev 0.2 --test 0.2 {folder}"


def _some_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "x": rng.normal(size=(9, 3)).astype(np.float32),
        "targets": rng.integers(0, 5, 9),
        "lengths": np.array([4, 5]),
        "speakers": np.array([1, 0]),
    }


def arrays(folder: Path, ending: str = "npz") -> str:
    """Frames, with lengths of utterances and speakers."""
    path = folder / f"a.{ending}"
    if ending == "h5":
        with h5py.File(path, "w") as file:
            for number, (name, array) in enumerate(_some_arrays().items()):
                file.create_dataset(name, data=array, **({"chunks": True, "compression": "gzip"} if number % 2 else {}))
    else:
        np.savez(path, **_some_arrays()) if ending == "npz" else np.savez_compressed(path, **_some_arrays())
    return f"arrays {path} --features x --lengths lengths --speakers speakers"


def arrays_packed(folder: Path) -> str:
    """A compressed npz archive."""
    return arrays(folder, "packed.npz")


def shards(folder: Path, kind: str = "frames") -> str:
    """Shards as this program writes them."""
    rng = np.random.default_rng(6)
    found: dict[str, Any] = {"targets": rng.integers(0, 5, 10).astype(np.int32)}
    if kind == "tokens":
        found = {"tokens": rng.integers(0, 5, 20).astype(np.uint16), "documents": np.array([0, 7, 20])}
        found["bytes"] = np.array([9, 30])
    elif kind == "frames":
        more = {"speakers": np.array([0, 1], np.int32), "keys": np.array([b"a", b"b"])}
        found |= {"features": rng.normal(size=(10, 3)).astype(np.float32), "utterances": np.array([0, 4, 10]), **more}
    else:
        found["images"] = rng.integers(0, 256, (10, 4, 4, 1)).astype(np.uint8)
    channels = 3 if kind == "frames" else 1
    statistics = (
        {}
        if kind == "tokens"
        else {"mean": np.zeros(channels, np.float32), "standard_deviation": np.ones(channels, np.float32)}
    )
    for number in range(2):
        write_shard(folder / shard_name("train", number, 2), kind, found, {"classes": 5, "source": "t", **statistics})
    return ""


def foreign(folder: Path, kind: str = "frames", libver: str = "earliest") -> str:
    """Shards as another tool writes them: HDF5's bookkeeping has no checksums, nor have attributes and arrays."""
    shards(folder, kind)
    for path in folder.glob("*.h5"):
        found = read_shard(path)
        with h5py.File(path, "w", libver=(libver, "latest")) as file:
            for name, array in found.arrays.items():
                file.create_dataset(name, data=array, chunks=True, fletcher32=True, compression="gzip")
            for name, value in found.attributes.items():
                if "xxh3" not in name:
                    file.attrs[name] = value
    return ""


FORMATS: dict[str, Callable[[Path], str]] = {
    "kaldi": kaldi,
    "kaldi-scp-cmvn": lambda folder: kaldi(folder, cmvn="scp"),
    "kaldi-text": lambda folder: kaldi(folder, text=True),
    "kaldi-compressed": lambda folder: kaldi(folder, compression=2),
    "kaldi-packed": kaldi_packed,
    "wav": wav,
    "wav-floats": floats,
    "wav-frames": lambda folder: wav(folder, segments=False),
    **{ending: lambda folder, ending=ending: wav(folder, ending) for ending in ("flac", "ogg", "mp3", "aiff", "au")},
    "mnist": mnist,
    "mnist-gz": lambda folder: mnist(folder, packed=True),
    "cifar": cifar,
    "cifar-binary": lambda folder: cifar(folder, binary=True),
    "cifar-tar": lambda folder: cifar(folder, "tar"),
    "cifar-gz": lambda folder: cifar(folder, "tar.gz"),
    **{
        ending: lambda folder, ending=ending: images(folder, ending)
        for ending in ("png", "jpg", "gif", "tiff", "bmp", "webp", "ppm")
    },
    "text": text,
    "npz": arrays,
    "npz-packed": arrays_packed,
    "arrays-h5": lambda folder: arrays(folder, "h5"),
    "shards": shards,
    "shards-images": lambda folder: shards(folder, "images"),
    "shards-tokens": lambda folder: shards(folder, "tokens"),
    "foreign-shards": foreign,
    "foreign-shards-images": lambda folder: foreign(folder, "images", "v110"),
    "foreign-shards-tokens": lambda folder: foreign(folder, "tokens", "v110"),
}


# ---- spoiling


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """One to three changes, most of them near the beginning or to a length."""
    for _ in range(int(rng.integers(1, 4))):
        changes = (_flip, _overwrite, _overwrite, _cut, _insert, _swap, _word, _word)
        content = changes[int(rng.integers(len(changes)))](content, rng)
    return content


def _place(content: bytes, rng: np.random.Generator) -> int:
    most = HEAD if rng.integers(2) else len(content)
    return int(rng.integers(max(min(most, len(content)), 1)))


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 9)) if content else 0):
        changed[_place(content, rng)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _number(rng: np.random.Generator) -> bytes:
    size, order = (2, 4, 8)[int(rng.integers(3))], ("little", "big")[int(rng.integers(2))]
    value = EXTREMES[int(rng.integers(len(EXTREMES)))] % (1 << 8 * size)
    return value.to_bytes(size, order)  # type: ignore[arg-type]


def _overwrite(content: bytes, rng: np.random.Generator) -> bytes:
    at, number = _place(content, rng), _number(rng)
    at -= at % 4 if rng.integers(2) else 0
    return content[:at] + number + content[at + len(number) :]


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: _place(content, rng)]


def _insert(content: bytes, rng: np.random.Generator) -> bytes:
    at = _place(content, rng)
    return content[:at] + _number(rng) + content[at:]


def _swap(content: bytes, rng: np.random.Generator) -> bytes:
    size = int(rng.integers(1, 65))
    a, b = sorted((_place(content, rng), _place(content, rng)))
    if b < a + size:
        return content[a:] + content[:a]
    return content[:a] + content[b : b + size] + content[a + size : b] + content[a : a + size] + content[b + size :]


def _word(content: bytes, rng: np.random.Generator) -> bytes:
    """A number in decimal becomes another."""
    found = list(re.finditer(rb"[-+.\d]*\d", content))
    if not found:
        return _overwrite(content, rng)
    match = found[int(rng.integers(len(found)))]
    return content[: match.start()] + WORDS[int(rng.integers(len(WORDS)))] + content[match.end() :]


# ---- trying


def attempt(words: str, folder: Path) -> None:
    """Import, or open, what lies in the folder, and read all of it."""
    if words:
        options = parser("prepare").parse_args(["prepare", *shlex.split(words), str(folder / "out")])
        Importing(Alone(), folder / "out", 1).run(lambda: options.planning(options))  # type: ignore[arg-type]
        folder = folder / "out"
    for limit in (1e9, 0):
        corpus = Corpus(folder, "train", memory_limit=limit, window=3 * (of_part(folder).kind == "tokens"))
        count = min(corpus.samples, 50)
        corpus.gather(np.arange(count), corpus.form.room(count, np.float32))
    for path in sorted(folder.glob("*.h5")):
        read_shard(path)


def try_one(form: str, seed: int, folder: Path) -> str:
    """What is wrong about how one spoilt file is taken; "refused", or "" where it is read."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words, rng = FORMATS[form](folder), np.random.default_rng([seed, *form.encode()])
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[int(rng.integers(len(files)))]
    content = path.read_bytes()
    if path.suffix == ".gz" and rng.integers(2):
        path.write_bytes(gzip.compress(mutate(gzip.decompress(content), rng)))
    else:
        path.write_bytes(mutate(content, rng))
    try:
        attempt(words, folder)
    except BadInput as error:
        text = str(error)  # a spoilt script names other files
        return "refused" if "\n" not in text and ("/" in text or path.name in text) else f"line: {text}"
    except Exception:
        return traceback.format_exc()
    return ""


def peak() -> int:
    """KiB that this program has had in memory at most. (ru_maxrss counts what its parent had when it forked, too.)"""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def main(forms: list[str], first: int, count: int, folder: Path) -> None:
    """Try them."""
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    warnings.simplefilter("error", RuntimeWarning)
    faults, refused, most, greediest = dict[str, str](), 0, 0, ""
    for form, seed in product(forms, range(first, first + count)):
        print(form, seed, flush=True)
        fault = try_one(form, seed, folder)
        refused += fault == "refused"
        if fault not in ("", "refused"):
            faults[f"{form} {seed}"] = fault
        if (taken := peak()) > most:
            most, greediest = taken, f"{form} {seed}"
    told = {"refused": refused, "faults": faults, "megabytes": most >> 10, "greediest": greediest}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
