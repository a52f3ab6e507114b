"""The importers of images and arrays: the same numbers out as in, and one line for what cannot be read."""

import gzip
import io
import pickle
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from mpitrain.__main__ import main
from mpitrain.data.check import check
from mpitrain.data.corpus import Corpus
from mpitrain.data.importers import mnist
from mpitrain.data.shards import folder_parts
from mpitrain.errors import BadInput

from .alone import imported, planned, refused

TEN = [f"name{number}" for number in range(10)]


def _rng() -> np.random.Generator:
    return np.random.default_rng(5)


def _planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def _cifar_files(name: str, binary: bool) -> tuple[dict[str, bytes], np.ndarray, dict[str, list[int]]]:
    """Files of an archive with two images a batch; all images in order, and labels by kind."""
    files, count = {}, 12 if name == "cifar10" else 6
    images = _rng().integers(0, 256, (count, 32, 32, 3), np.uint8)
    if name == "cifar10":
        labels = {"labels": [(7 * n) % 10 for n in range(count)]}
        batches = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
        each = 2
    else:
        labels = {"coarse_labels": [19, 0, 3, 7, 1, 2], "fine_labels": [99, 0, 5, 98, 3, 7]}
        batches, each = ["train", "test"], 3
    for number, batch in enumerate(batches):
        part = slice(number * each, (number + 1) * each)
        if binary:
            numbers = [np.array(values[part], np.uint8)[:, None] for values in labels.values()]
            files[f"{batch}.bin"] = np.concatenate([*numbers, _planes(images[part])], axis=1).tobytes()
        else:
            found = {key.encode(): values[part] for key, values in labels.items()}
            files[batch] = pickle.dumps({b"data": _planes(images[part]), **found}, protocol=2)
    fine, coarse = [f"fine{n}" for n in range(100)], [f"coarse{n}" for n in range(20)]
    if name == "cifar10":
        names = {"batches.meta.txt": "\n".join(TEN).encode() + b"\n"}
        meta = {"batches.meta": pickle.dumps({b"label_names": [text.encode() for text in TEN]}, protocol=2)}
    else:
        names = {"fine_label_names.txt": "\n".join(fine).encode(), "coarse_label_names.txt": "\n".join(coarse).encode()}
        meta = {"meta": pickle.dumps({b"fine_label_names": fine, b"coarse_label_names": coarse}, protocol=2)}
    return files | (names if binary else meta), images, labels


def _store(files: dict[str, bytes], where: Path, form: str) -> Path:
    """As a tar.gz, a tar, the folder it unpacks to, or a folder around that."""
    inner = "cifar-batches-py"
    if form in ("tar.gz", "tar"):
        path = where / f"cifar.{form}"
        with tarfile.open(path, "w:gz" if form == "tar.gz" else "w") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"{inner}/{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return path
    (where / inner).mkdir(parents=True)
    for name, content in files.items():
        (where / inner / name).write_bytes(content)
    return where / inner if form == "folder" else where


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("form", ["tar.gz", "tar", "folder", "around"])
def test_cifar10_comes_out_as_it_went_in(tmp_path: Path, form: str, binary: bool) -> None:
    files, images, labels = _cifar_files("cifar10", binary)
    source = _store(files, tmp_path / "in" if "tar" not in form else tmp_path, form)
    parts = imported(tmp_path / "out", lambda: planned("cifar10", source))
    assert list(parts) == ["train", "test"]
    assert np.array_equal(parts["train"]["images"], images[:10]) and np.array_equal(
        parts["test"]["images"], images[10:]
    )
    assert [*parts["train"]["targets"], *parts["test"]["targets"]] == labels["labels"]
    pixels = images[:10].reshape(-1, 3).astype(float)
    for found in parts.values():
        assert found["class_names"].split() == TEN and found["classes"] == 10 and found["source"] == "CIFAR-10"
        assert np.allclose(found["mean"], pixels.mean(0)) and np.allclose(found["standard_deviation"], pixels.std(0))
        assert np.allclose(found["covariance"], np.cov(pixels.T, bias=True), rtol=1e-5)


@pytest.mark.parametrize("binary", [False, True])
def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path, binary: bool) -> None:
    files, images, labels = _cifar_files("cifar100", binary)
    source = _store(files, tmp_path, "tar.gz")
    for words, key, classes in (((), "fine_labels", 100), (("--labels", "coarse"), "coarse_labels", 20)):
        parts = imported(tmp_path / key, lambda words=words: planned("cifar100", source, *words))  # type: ignore[misc]
        assert np.array_equal(np.concatenate([parts[part]["images"] for part in ("train", "test")]), images)
        assert [*parts["train"]["targets"], *parts["test"]["targets"]] == labels[key]
        assert parts["test"]["classes"] == classes
        assert parts["test"]["class_names"].split()[-1] == f"{key.removesuffix('_labels')}{classes - 1}"


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda files: files.pop("data_batch_3"), "has no data_batch_3, which is a part of CIFAR-10"),
        (lambda files: files.pop("batches.meta"), "has no batches.meta"),
        (lambda files: files.update(data_batch_2=b""), "data_batch_2: is empty"),
        (lambda files: files.update(data_batch_2=files["data_batch_2"][:2000]), "data_batch_2: not a pickle of arrays"),
        (lambda files: files.update(test_batch=files["batches.meta"]), "test_batch: no data of n x 3072 bytes"),
        (
            lambda files: files.update(
                data_batch_1=pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2, 3]}, protocol=2)
            ),
            "data_batch_1: 2 images but 3 labels",
        ),
    ],
)
def test_a_spoilt_cifar_archive_is_one_line(tmp_path: Path, spoil: Any, line: str, capsys: Any) -> None:
    files = _cifar_files("cifar10", False)[0]
    spoil(files)
    source = _store(files, tmp_path, "tar.gz")
    refused(tmp_path / "out", lambda: planned("cifar10", source), line, capsys)


def test_names_with_blanks_stay_one_each(tmp_path: Path) -> None:
    files = _cifar_files("cifar10", False)[0]
    files["batches.meta"] = pickle.dumps({"label_names": [*TEN[:9], "big truck"]}, protocol=2)
    source = _store(files, tmp_path, "tar.gz")
    parts = imported(tmp_path / "out", lambda: planned("cifar10", source))
    assert parts["train"]["class_names"].split() == [*TEN[:9], "big_truck"]


@pytest.mark.parametrize("binary", [False, True])
def test_a_flipped_bit_of_a_compressed_archive_is_one_line(tmp_path: Path, binary: bool) -> None:
    """Most of them make other pixels, and nothing else."""
    source = _store(_cifar_files("cifar10", binary)[0], tmp_path, "tar.gz")
    whole = source.read_bytes()
    for place in range(500, len(whole), len(whole) // 20):
        source.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(BadInput, match="not a complete tar archive: "):
            planned("cifar10", source)


@pytest.mark.parametrize("missing", ["data_batch_3.bin", "test_batch.bin"])
def test_a_missing_binary_batch_is_named(tmp_path: Path, missing: str, capsys: Any) -> None:
    files = _cifar_files("cifar10", True)[0]
    del files[missing]
    source = _store(files, tmp_path, "folder")
    refused(tmp_path / "out", lambda: planned("cifar10", source), f"has no {missing}, which is a part", capsys)


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_no_tar_archive_is_one_line(tmp_path: Path, content: bytes | None, capsys: Any) -> None:
    source = _store(_cifar_files("cifar10", False)[0], tmp_path, "tar.gz")
    source.write_bytes(source.read_bytes()[:5000] if content is None else content)
    refused(tmp_path / "out", lambda: planned("cifar10", source), "cifar.tar.gz: not a complete tar archive", capsys)
    source.unlink()
    refused(
        tmp_path / "out", lambda: planned("cifar10", source), "cifar.tar.gz: not a complete tar archive: No", capsys
    )


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def _mnist_files() -> dict[str, np.ndarray]:
    rng = _rng()
    files = {}
    for name, count in (("train", 8), ("t10k", 3)):
        files[f"{name}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        files[f"{name}-labels-idx1-ubyte"] = rng.integers(0, 10, count).astype(np.uint8)
    return files


@pytest.mark.parametrize("form", ["plain", "gz", "dots"])
def test_mnist_comes_out_as_it_went_in(tmp_path: Path, form: str) -> None:
    source, files = tmp_path / "fashion", _mnist_files()
    source.mkdir()
    for name, array in files.items():
        content = gzip.compress(_idx(array)) if form == "gz" else _idx(array)
        (
            source / (f"{name}.gz" if form == "gz" else name.replace("-idx", ".idx") if form == "dots" else name)
        ).write_bytes(content)
    parts = imported(tmp_path / "out", lambda: mnist.plan(source))
    for part, name in (("train", "train"), ("test", "t10k")):
        assert np.array_equal(parts[part]["images"][..., 0], files[f"{name}-images-idx3-ubyte"])
        assert np.array_equal(parts[part]["targets"], files[f"{name}-labels-idx1-ubyte"])
        assert parts[part]["mean"] == pytest.approx(files["train-images-idx3-ubyte"].mean())
        assert parts[part]["source"] == "IDX files of fashion" and parts[part]["classes"] == 10


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("t10k-labels-idx1-ubyte", None, "has neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte.gz"),
        ("train-images-idx3-ubyte", b"", "train-images-idx3-ubyte: is empty"),
        ("train-images-idx3-ubyte", b"GIF89a", "begins with 47 49 46 38"),
        ("train-images-idx3-ubyte", _idx(np.zeros((8, 28, 28), np.uint8))[:-1], "6,271 bytes of data, but 8 x 28 x 28"),
        ("train-labels-idx1-ubyte", _idx(np.zeros(7, np.uint8)), "train-labels-idx1-ubyte: 7 labels for the 8 images"),
        ("train-labels-idx1-ubyte", _idx(np.full(8, 10, np.uint8)), "a label 10, but there are 10 classes"),
    ],
)
def test_spoilt_idx_files_are_one_line(
    tmp_path: Path, name: str, content: bytes | None, line: str, capsys: Any
) -> None:
    for file, array in _mnist_files().items():
        (tmp_path / file).write_bytes(_idx(array))
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused(tmp_path / "out", lambda: mnist.plan(tmp_path), line, capsys)


def _pictures(folder: Path, count: int, shape: tuple[int, ...] = (6, 8, 3), seed: int = 0) -> dict[str, np.ndarray]:
    """Pictures of one class, by their last names, saved as PNG."""
    folder.mkdir(parents=True)
    found = {f"{n:03d}.png": np.random.default_rng((seed, n)).integers(0, 256, shape, np.uint8) for n in range(count)}
    for name, pixels in found.items():
        Image.fromarray(pixels).save(folder / name)
    return found


def _same(found: np.ndarray, wanted: list[np.ndarray]) -> bool:
    return sorted(image.tobytes() for image in found) == sorted(image.tobytes() for image in wanted)


def test_png_pictures_come_out_as_they_went_in(tmp_path: Path) -> None:
    classes = {name: _pictures(tmp_path / "in" / name, 5, seed=seed) for seed, name in enumerate(["b two", "a", "c"])}
    (tmp_path / "in" / "a" / "notes.txt").write_text("not a picture")
    (tmp_path / "in" / "a" / ".hidden.png").write_text("neither")
    parts = imported(tmp_path / "out", lambda: planned("images", tmp_path / "in"))
    train = parts["train"]
    assert list(parts) == ["train"] and train["class_names"] == "a b_two c" and train["source"] == "pictures of in"
    for target, name in enumerate(sorted(classes)):
        assert _same(train["images"][train["targets"] == target], list(classes[name].values()))
    assert sorted(train["targets"]) != list(train["targets"])  # shuffled
    for _ in range(2):  # the second time, shards lie beside the folders of the classes
        again = imported(tmp_path / "in", lambda: planned("images", tmp_path / "in"))
        assert np.array_equal(again["train"]["images"], train["images"])


def test_jpeg_pictures_are_resized_and_cut(tmp_path: Path) -> None:
    """Each 40 x 60, one colour a class: what comes out is 20 x 20 of that colour, in three channels or one."""
    for name, colour in (("dark", (10, 20, 30)), ("light", (200, 210, 220))):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(3):
            picture = Image.new("RGB", (60, 40) if number else (40, 60), colour)
            picture.save(tmp_path / "in" / name / f"{number}.jpg", quality=95)
    for grey, wanted in ((False, ((10, 20, 30), (200, 210, 220))), (True, ((19,), (208,)))):
        out = tmp_path / f"out-{grey}"
        train = imported(out, lambda grey=grey: planned("images", tmp_path / "in", "--size", 20, *["--grey"] * grey))[
            "train"
        ]  # type: ignore[misc]
        assert train["images"].shape == (6, 20, 20, 1 if grey else 3)
        for target in (0, 1):
            assert np.abs(train["images"][train["targets"] == target].astype(int) - wanted[target]).max() <= 3


def test_folders_of_parts_are_parts(tmp_path: Path) -> None:
    wanted = {}
    for seed, (part, folder) in enumerate((("train", "train"), ("dev", "val"), ("test", "test"))):
        wanted[part] = _pictures(tmp_path / "in" / folder / "only", 3 + seed, seed=seed)
    parts = imported(tmp_path / "out", lambda: planned("images", tmp_path / "in"))
    assert list(parts) == ["train", "dev", "test"]
    for part, found in parts.items():
        assert _same(found["images"], list(wanted[part].values())), part


def test_shares_are_held_out_of_every_class(tmp_path: Path) -> None:
    pictures = [_pictures(tmp_path / "in" / name, count, seed=count).values() for name, count in (("a", 10), ("b", 20))]
    plan = lambda seed: planned("images", tmp_path / "in", "--dev", 0.1, "--test", 0.3, "--seed", seed)  # noqa: E731
    parts = imported(tmp_path / "out", lambda: plan(1))
    assert [np.bincount(parts[part]["targets"]).tolist() for part in ("train", "dev", "test")] == [
        [6, 12],
        [1, 2],
        [3, 6],
    ]
    everything = np.concatenate([found["images"] for found in parts.values()])
    assert _same(everything, [pixels for found in pictures for pixels in found])
    other = imported(tmp_path / "other", lambda: plan(2))
    assert not _same(other["test"]["images"], list(parts["test"]["images"]))


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a/100.png", b"", "a/100.png: is empty"),
        ("a/100.png", b"<html>", "a/100.png: not an image in a format that Pillow reads"),
        ("b/100.jpg", "truncated", "b/100.jpg: cannot be read"),
        ("b/100.png", "larger", "b/100.png: 9 x 6 pixels, but the first picture has 8 x 6; --size makes them alike"),
        ("100.png", "larger", "100.png: lies outside the folders of the classes"),
        ("c/readme.txt", b"", "c: holds no pictures"),
        ("train/a/1.png", "larger", "a: beside train/ there may be one of val/ or dev/, and test/"),
    ],
)
def test_spoilt_pictures_are_one_line(
    tmp_path: Path, name: str, content: bytes | str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("a", "b"):
        _pictures(tmp_path / "in" / folder, 2)
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)).save(path)
        if content == "truncated":
            path.write_bytes(path.read_bytes()[:-150])
    refused(tmp_path / "out", lambda: planned("images", tmp_path / "in"), line, capsys)


@pytest.mark.parametrize("parts", [("Train", "Test"), ("Training", "Testing", "Validation")])
def test_folders_that_look_like_parts_are_no_classes(
    tmp_path: Path, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for part in parts:
        _pictures(tmp_path / "in" / part / "a", 2)
    line = f"in: has folders {', '.join(sorted(parts))}; parts are called train/, val/ (or dev/) and test/"
    refused(tmp_path / "out", lambda: planned("images", tmp_path / "in"), line, capsys)


def _spoilt(folder: Path) -> Path:
    """Two classes of nine pictures, and three that cannot be read, among them the first."""
    for name in ("a", "b two"):
        _pictures(folder / name, 9)
    (folder / "a" / "000.png").write_bytes(b"")
    (folder / "a" / "100.png").write_bytes(b"<html>")
    path = folder / "b two" / "004.png"
    path.write_bytes(path.read_bytes()[:-60])
    (folder / "a" / "notes.txt").write_text("")
    return folder


@pytest.mark.parametrize("size", [(), ("--size", 4)])
def test_all_broken_pictures_are_listed_and_can_be_left_out(
    tmp_path: Path, size: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """What was made before the refusal is not made again; all that is left out or renamed is named."""
    source, out = _spoilt(tmp_path / "in"), tmp_path / "out"
    lines = ["a/000.png: is empty", "a/100.png: not an image in a format that Pillow reads", "b two/004.png: cannot be"]
    refused(out, lambda: planned("images", source, *size), "(and 2 more, named above); --skip-broken", capsys)
    made = {path: path.stat().st_ino for path in out.iterdir()}
    train = imported(out, lambda: planned("images", source, *size, "--skip-broken"))["train"]
    shown = capsys.readouterr().out
    assert all(f"left out: {source}/{line}" in shown for line in lines)
    assert np.bincount(train["targets"]).tolist() == [8, 8] and "train, samples by class: a: 8, b_two: 8\n" in shown
    assert "class 'b two' is called b_two\n" in shown and shown.count(": a/notes.txt") == 1
    assert list(made.values()) == [path.stat().st_ino for path in out.iterdir()]


def test_any_number_of_broken_pictures_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here of 80,000 bytes in one shard."""
    source = tmp_path / "in"
    _pictures(source / "a", 2)
    for number in range(400):
        (source / "a" / f"{number:0200d}.png").touch()
    refused(tmp_path / "out", lambda: planned("images", source), "(and 399 more, named", capsys)
    imported(tmp_path / "out", lambda: planned("images", source, "--skip-broken"))
    assert capsys.readouterr().out.count(".png: is empty\n") == 400


def test_a_shard_may_lose_all_its_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Large ones have one each: what remains is what the others hold, read from memory, from disk, or partly."""
    source = tmp_path / "in"
    for name in ("train", "dev"):
        _pictures(source / name / "a", 6, (600, 600, 3))
        for number in (0, 3):
            (source / name / "a" / f"{number:03d}.png").write_bytes(b"")
    refused(tmp_path / "no", lambda: planned("images", source), "(and 3 more, named", capsys)
    found = imported(tmp_path / "out", lambda: planned("images", source, "--skip-broken"))
    check(tmp_path / "out")
    assert "train  6 of 6  4 " in capsys.readouterr().out
    for part in ("train", "dev"):
        wanted = found[part]["images"]
        assert len(wanted) == 4
        for limit in (0, 1 << 21, 1 << 30):
            corpus = Corpus(tmp_path / "out", part, memory_limit=limit, normalise="none", hold=False)
            corpus.hold(partly=True)
            batch = corpus.gather(np.arange(4)[::-1], corpus.form.room(4, "float32"))
            assert np.array_equal(batch.inputs.reshape(wanted.shape), wanted[::-1])
    empty = min(folder_parts(tmp_path / "out")["dev"], key=lambda path: path.stat().st_size)
    (tmp_path / "alone").mkdir()
    empty.rename(tmp_path / "alone" / "dev-00000-of-00001.h5")
    with pytest.raises(BadInput, match="alone: part dev has no samples"):
        Corpus(tmp_path / "alone", "dev")


def test_a_part_of_broken_pictures_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "dev"):
        _pictures(tmp_path / "in" / name / "a", 2)
    for path in (tmp_path / "in/dev").rglob("*.png"):
        path.write_bytes(b"")
    plan = lambda skip: planned("images", tmp_path / "in", "--size", 4, *["--skip-broken"] * skip)  # noqa: E731
    refused(tmp_path / "out", lambda: plan(False), "--skip-broken leaves such files out", capsys)
    refused(tmp_path / "out", lambda: plan(True), "pictures of in: no file of part dev can be read", capsys)


def test_a_class_with_few_pictures_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 8, 8 and 1 the median is 8, a quarter of it 2; `check` says the same as the import."""
    for name, count in (("a", 8), ("b", 8), ("c", 1)):
        _pictures(tmp_path / "in" / name, count)
    imported(tmp_path / "out", lambda: planned("images", tmp_path / "in"))
    first = capsys.readouterr().out
    check(tmp_path / "out")
    few = "warning: train: less than a quarter of the median of 8 samples a class: c: 1"
    for shown in (first, capsys.readouterr().out):
        assert f"train, samples by class: a: 8, b: 8, c: 1\n{few}\n" in shown


def test_names_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As bytes of another encoding: of the source, and of a file that is left out."""
    source = tmp_path / "in\udcff"
    _pictures(source / "a", 2)
    (source / "a" / "notes\udcff.txt").write_text("")
    train = imported(tmp_path / "out", lambda: planned("images", source))["train"]
    assert train["source"] == "pictures of in\\udcff" and "a/notes\\udcff.txt" in capsys.readouterr().out


def test_classes_whose_names_would_become_one_are_refused(tmp_path: Path) -> None:
    for name in ("a b", "a_b"):
        _pictures(tmp_path / "in" / name, 1)
    with pytest.raises(BadInput, match="two classes would have one name: class 'a b' is called a_b"):
        planned("images", tmp_path / "in")


@pytest.mark.parametrize(
    ("shares", "line"),
    [
        (("--dev", 1), "--dev 1: expected a share"),
        (("--test", -0.1), "--test -0.1: expected a share"),
        (("--dev", 0.5, "--test", 0.5), "expected a share"),
        (("--dev", 0.01), "--dev 0.01: too few pictures"),
    ],
)
def test_shares_that_cannot_be_are_named(tmp_path: Path, shares: tuple[object, ...], line: str) -> None:
    _pictures(tmp_path / "in" / "a", 4)
    with pytest.raises(BadInput, match=line):
        planned("images", tmp_path / "in", *shares)


def _write(path: Path, found: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez_compressed(path, **found)
    else:
        with h5py.File(path, "w") as file:
            for name, array in found.items():
                file[name] = array
    return path


@pytest.mark.parametrize("name", ["a.npz", "a.h5", "a.hdf5"])
@pytest.mark.parametrize("shape", [(30, 5, 4), (30, 5, 4, 3), (30, 3, 5, 4)])
def test_arrays_of_images_come_out_as_they_went_in(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    first = shape[1] == 3
    found = {f"x_{part}": _rng().integers(0, 256, shape, np.uint8) for part in ("train", "test")}
    found |= {f"y_{part}": _rng().integers(0, 4, (30, 1)) for part in ("train", "test")}
    path = _write(tmp_path / name, found)
    words = ["--images", "x_{part}", "--targets", "y_{part}", "--parts", "train,test", *["--channels-first"] * first]
    parts = imported(tmp_path / "out", lambda: planned("arrays", path, *words))
    for part in ("train", "test"):
        wanted = found[f"x_{part}"].transpose(0, 2, 3, 1) if first else found[f"x_{part}"].reshape(30, 5, 4, -1)
        assert np.array_equal(parts[part]["images"], wanted)
        assert np.array_equal(parts[part]["targets"], found[f"y_{part}"][:, 0]) and parts[part]["classes"] == 4


@pytest.mark.parametrize(
    ("shape", "first", "said"),
    [
        ((3, 8, 6), False, ["taken for images of 3 x 8 pixels with 6 channels; is that --channels-first?"]),
        ((3, 8, 6), True, []),
        ((3, 8, 4), False, []),  # such as red, green, blue and alpha
        ((8, 6, 3), False, []),
        ((3, 8), False, []),
    ],
)
def test_images_whose_channels_may_come_first_are_told_of(
    tmp_path: Path, shape: tuple[int, ...], first: bool, said: list[str]
) -> None:
    """As in arrays for PyTorch."""
    path = _write(tmp_path / "a.npz", {"x": np.zeros((5, *shape), np.uint8), "y": np.arange(5)})
    notes = planned("arrays", path, "--images", "x", "--targets", "y", *["--channels-first"] * first).notes
    assert [note.partition("]: ")[2] for note in notes] == said


@pytest.mark.parametrize("utterances", ["offsets", "lengths", ""])
@pytest.mark.parametrize("name", ["{part}.npz", "{part}.h5"])
def test_arrays_of_frames_come_out_as_they_went_in(tmp_path: Path, name: str, utterances: str) -> None:
    wanted = {}
    for part, lengths in (("train", [3, 1, 4]), ("dev", [2])):
        frames = sum(lengths)
        wanted[part] = {
            "x": _rng().normal(size=(frames, 6)),
            "group/y": np.arange(frames) % 5,
            "offsets": np.cumsum([0, *lengths]),
            "lengths": np.array(lengths),
            "who": np.array([b"eve", b"adam", b"eve"][: len(lengths)]),
        }
        _write(tmp_path / name.replace("{part}", part), wanted[part])
    words = ["--features", "x", "--targets", "group/y", "--parts", "train,dev"]
    if utterances:
        words += [f"--{'utterances' if utterances == 'offsets' else utterances}", utterances, "--speakers", "who"]
    parts = imported(tmp_path / "out", lambda: planned("arrays", tmp_path / name, *words))
    for part, found in wanted.items():
        assert np.array_equal(parts[part]["features"], found["x"].astype(np.float32))
        assert np.array_equal(parts[part]["targets"], found["group/y"])
        offsets = found["offsets"] if utterances else np.arange(len(found["x"]) + 1)
        assert np.array_equal(parts[part]["utterances"], offsets)
    if utterances:
        assert parts["train"]["speakers"].tolist() == [1, 0, 1]
    assert np.allclose(parts["dev"]["mean"], wanted["train"]["x"].mean(0), rtol=1e-5)


def test_utterances_are_not_cut_between_shards(tmp_path: Path) -> None:
    lengths = _rng().integers(1, 3000, 700)
    frames, starts = int(lengths.sum()), np.cumsum([0, *lengths])[:-1]
    features = np.arange(frames, dtype=np.float32)[:, None]
    path = _write(tmp_path / "a.h5", {"features": features, "targets": np.zeros(frames, int), "n": lengths})
    imported(tmp_path / "out", lambda: planned("arrays", path, "--features", "features", "--lengths", "n"))
    paths = sorted((tmp_path / "out").iterdir())
    assert len(paths) > 2
    begins = []
    for shard in paths:
        with h5py.File(shard) as file:
            begins += list(file["features"][:, 0][file["utterances"][:-1]].astype(int))
    assert begins == starts.tolist()
    assert Corpus(tmp_path / "out", "train", normalise="none").samples == frames


GOOD: dict[str, Any] = {"x": np.ones((4, 2), np.float32), "targets": np.array([0, 1, 2, 1]), "n": np.array([1, 3])}


@pytest.mark.parametrize(
    ("change", "names", "line"),
    [
        ({"x": np.array([[1, 2], [3, np.nan], [5, 6], [7, 8.0]])}, {}, "x: frame 1 has values that are not finite"),
        ({"x": np.full((4, 2), 1e300)}, {}, "x: frame 0 has values that are not finite, or beyond ±1e+30"),
        ({"x": np.full((4, 2), -3.4e38, np.float32)}, {}, "x: frame 0 has values that are not finite, or beyond"),
        ({"x": np.ones((4, 0), np.float32)}, {}, "x is float32 [4, 0]: samples of no values"),
        ({"x": np.ones(4)}, {}, "x is float64 [4]; features are numbers [frames, dims]"),
        ({"x": np.ones((4, 2), "S3")}, {}, "features are numbers"),
        ({"targets": np.array([0, 1, 2])}, {}, "3 targets in targets for 4 samples"),
        ({"targets": np.array([0.0, 1, 2, 3])}, {}, "targets is float64 [4]; targets are whole numbers"),
        ({"targets": np.eye(4, dtype=int)}, {}, "targets is int64 [4, 4]; targets are whole numbers"),
        ({"targets": np.array([0, 1, -1, 1])}, {}, "targets holds -1; classes are 0 to 2"),
        ({"targets": np.array([0, 1, 3, 1])}, {}, "targets holds 3; classes are 0 to 2"),
        ({}, {"--features": "z"}, "has no array z, but n, targets, x"),
        ({}, {"--targets": "z"}, "has no array z"),
        ({"n": np.array([1, 2])}, {}, "n does not divide 4 frames into utterances"),
        ({"n": np.array([4, 0])}, {}, "n does not divide 4 frames into utterances"),
        ({"n": np.array([1.0, 3.0])}, {}, "n is float64 [2]; expected whole numbers"),
        ({"x": np.ones((0, 2)), "targets": np.ones(0, int)}, {}, "targets is empty"),
        ({"who": np.array([1])}, {"--speakers": "who"}, "who does not name the speaker of each of 2 utterances"),
        (
            {"x": np.ones((4, 2, 2, 3), np.float32)},
            {"--images": "x", "--features": "", "--lengths": ""},
            "images are uint8",
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_arrays_that_do_not_fit_are_one_line(
    tmp_path: Path, change: Any, names: Any, line: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / f"a{suffix}", GOOD | change)
    given = {"--features": "x", "--lengths": "n", "--classes": "3", **names}
    words = [word for pair in given.items() if pair[1] for word in pair]
    refused(tmp_path / "out", lambda: planned("arrays", path, *words), line, capsys)


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("how", ["empty", "text", "cut", "objects"])
def test_files_that_cannot_be_read_are_one_line(tmp_path: Path, suffix: str, how: str, capsys: Any) -> None:
    path = _write(tmp_path / f"a{suffix}", GOOD)
    line = {"empty": "is empty", "text": "neither npz nor HDF5", "cut": "cannot be read"}.get(
        how, "cannot be read: Object"
    )
    if how == "objects":
        path = _write(tmp_path / "a.npz", GOOD | {"x": np.array([[1], [1, 2], [3], [4]], object)})
    else:
        path.write_bytes({"empty": b"", "text": b"hello", "cut": path.read_bytes()[:-200]}[how])
    refused(tmp_path / "out", lambda: planned("arrays", path, "--features", "x"), line, capsys)


def test_an_hdf5_file_may_begin_with_text(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["x"], file["y"] = np.arange(12.0).reshape(4, 3), [0, 1, 1, 0]
    with path.open("r+b") as stored:
        stored.write(b"MATLAB 7.3 MAT-file")
    part = imported(tmp_path / "out", lambda: planned("arrays", path, "--features", "x", "--targets", "y"))["train"]
    assert part["features"].tolist() == np.arange(12.0).reshape(4, 3).tolist()


def test_the_command_line_says_what_it_cannot_do(tmp_path: Path) -> None:
    for words, line in (
        (["images", "--size", "-1"], "--size -1"),
        (["images", "--size", "8193"], "--size 8193: at most 8192"),
        (["mnist", "--jobs", "0"], "--jobs 0: at least 1"),
        (["arrays", "--features", "x", "--channels-first"], "--channels-first: features have no channels"),
        (["arrays", "--images", "x", "--lengths", "n"], "--lengths: images have none"),
        (["arrays", "--images", "x", "--parts", "train,test"], "neither SOURCE nor x contains"),
        (["arrays", "--images", "{part}", "--parts", "train,test"], "neither SOURCE nor targets contains"),
        (["arrays", "--images", "x", "--parts", "tests"], "a part is called train, dev, test or test-NAME"),
    ):
        options = _parsed(["prepare", *words, str(tmp_path / "in"), str(tmp_path / "out")])
        _write(tmp_path / "in.npz", {"x": np.zeros((1, 2, 2), np.uint8), "targets": np.zeros(1, int)}).rename(
            tmp_path / "in"
        )
        with pytest.raises(BadInput, match=line):
            _plan_of(options)
    with pytest.raises(SystemExit):
        main(["prepare", "arrays", "a.npz", "out", "--images", "x", "--features", "y"])


def _parsed(words: list[str]) -> Any:
    from mpitrain.__main__ import parser

    return parser().parse_args(words)


def _plan_of(options: Any) -> None:
    """What `prepare` does before anything is written."""
    from mpitrain.data.importers.plan import require_least

    require_least(options, jobs=1)
    options.planning(options)


def test_a_missing_pillow_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pictures(tmp_path / "in" / "a", 1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(BadInput, match=r"prepare images needs Pillow: pip install mpitrain\[images\]"):
        planned("images", tmp_path / "in")


def test_a_filter_that_is_not_installed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk((10, 4))
        made.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((10, 4))
        stored = h5py.h5d.create(file.id, b"features", h5py.h5t.IEEE_F32LE, space, made)
        stored.write_direct_chunk((0, 0), bytes(160))
        file["targets"] = np.zeros(10, np.int32)
    line = "features is compressed by HDF5's filter 32001 (), which is not installed; HDF5_PLUGIN_PATH names"
    refused(tmp_path / "out", lambda: planned("arrays", tmp_path / "a.h5", "--features", "features"), line, capsys)
