"""The parsers of published image files: their byte layouts, and whatever else may lie where one is expected."""

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mpitrain.data.importers.cifar import LABELS, class_names, parse
from mpitrain.data.importers.mnist import parse_idx, read_idx
from mpitrain.data.importers.pickles import read_pickle
from mpitrain.data.importers.pictures import load_picture
from mpitrain.errors import BadInput

HERE, RECORDS, WORDS = Path("batch"), Path("batch.bin"), Path("names.txt")


def _images(count: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, 32, 32, 3), np.uint8)


def _planes(image: np.ndarray) -> bytes:
    return b"".join(bytes(image[row, column, c] for row in range(32) for column in range(32)) for c in range(3))


def _python2_batch(data: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    """A batch as Python 2 pickled it, protocol 2: strings of bytes, and NumPy's module of that time."""
    text = lambda value: b"U" + bytes([len(value)]) + value  # noqa: E731  SHORT_BINSTRING
    number = lambda value: b"J" + struct.pack("<i", value)  # noqa: E731  BININT
    kind = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ" + b"\xff" * 4
    kind += b"J" + b"\xff" * 4 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR(K\x01("
    array += number(data.shape[0]) + number(data.shape[1]) + b"t" + kind + b"\x89"
    array += b"T" + struct.pack("<i", data.nbytes) + data.tobytes() + b"tb"
    items = text(b"data") + array + text(key) + b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5") + items + b"u."


def test_a_batch_of_python_2_holds_red_then_green_then_blue() -> None:
    images = _images()
    data = np.array([list(_planes(image)) for image in images], np.uint8)
    content = _python2_batch(data, [7, 0, 9])
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], data)  # NumPy agrees that it is one
    found, targets = parse(content, LABELS["cifar10"], HERE)
    assert np.array_equal(found, images) and found.flags.c_contiguous
    assert targets.tolist() == [7, 0, 9] and targets.dtype == np.int32


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickles_of_today_are_read_as_well(protocol: int) -> None:
    data = _images().transpose(0, 3, 1, 2).reshape(3, 3072)
    batch = {b"data": data, b"fine_labels": [99, 0, 5], b"coarse_labels": [19, 0, 1], b"filenames": [b"a", b"b", b"c"]}
    content = pickle.dumps(batch, protocol=protocol)
    for name, wanted in (("cifar100", [99, 0, 5]), ("cifar100-coarse", [19, 0, 1])):
        found, targets = parse(content, LABELS[name], HERE)
        assert np.array_equal(found, _images()) and targets.tolist() == wanted
    content = pickle.dumps({"data": np.asfortranarray(data), "labels": [1, 2, 3]}, protocol=protocol)
    assert np.array_equal(parse(content, LABELS["cifar10"], HERE)[0], _images())


@pytest.mark.parametrize(
    ("name", "prefix", "wanted"),
    [("cifar10", b"\x07", 7), ("cifar100", b"\x13\x63", 99), ("cifar100-coarse", b"\x13\x63", 19)],
)
def test_a_binary_record_is_labels_then_planes(name: str, prefix: bytes, wanted: int) -> None:
    content = b"".join(prefix + _planes(image) for image in _images())
    found, targets = parse(content, LABELS[name], RECORDS)
    assert np.array_equal(found, _images()) and targets.tolist() == [wanted] * 3


def test_class_names_come_in_order() -> None:
    names = [f"name-{number}" for number in range(10)]
    labels = LABELS["cifar10"]
    assert class_names("\n".join(names).encode() + b"\n\n", labels, WORDS) == names
    meta = pickle.dumps({b"label_names": [name.encode() for name in names], b"num_vis": 3072}, protocol=2)
    assert class_names(meta, labels, HERE) == names
    with pytest.raises(BadInput, match=r"names\.txt: 9 names of 10 classes"):
        class_names("\n".join(names[1:]).encode(), labels, WORDS)


class _Harm:
    """What unpickling it would do."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("function", [os.system, eval, exec, np.fromfile, np.load, pickle.loads, getattr])
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path: Path, function: Any, protocol: int) -> None:
    mark = tmp_path / "mark"
    argument = {os.system: f"touch {mark}", eval: f"open({str(mark)!r}, 'w')", exec: f"open({str(mark)!r}, 'w')"}
    harm = _Harm(function, argument.get(function, str(mark)))
    content = pickle.dumps({"data": harm, "labels": [0]}, protocol=protocol)
    with pytest.raises(BadInput, match=r"batch: not a pickle of arrays: it names .*, which no array needs"):
        read_pickle(content, HERE)
    assert not mark.exists()
    if function is os.system:
        pickle.loads(content)  # it would have
        assert mark.exists()


@pytest.mark.parametrize("value", [np.array([{}], object), np.zeros(3), np.array(["a"]), np.zeros(2, [("a", "u1")])])
def test_arrays_of_other_things_than_bytes_are_refused(value: np.ndarray) -> None:
    for protocol in (2, 5):
        with pytest.raises(BadInput, match="not a pickle of arrays"):
            read_pickle(pickle.dumps({"data": value}, protocol=protocol), HERE)


def test_an_array_says_how_many_bytes_it_has() -> None:
    huge = b"\x80\x02}(U\x04data" + b"cnumpy._core.numeric\n_frombuffer\n(J\xff\xff\xff\x7f" + b"NNNtRu."
    with pytest.raises(BadInput, match="an array without bytes"):
        read_pickle(huge, HERE)
    content = _python2_batch(np.zeros((2, 3072), np.uint8), [0, 0])
    wrong = content.replace(struct.pack("<i", 2) + b"J" + struct.pack("<i", 3072), b"\x03\0\0\0J" + b"\0\x0c\0\0")
    with pytest.raises(BadInput, match=r"an array of \(3, 3072\) with 6144 bytes"):
        read_pickle(wrong, HERE)


@pytest.mark.parametrize(
    ("batch", "line"),
    [
        (b"", "batch: is empty"),
        (b"hello", "not a pickle of arrays"),
        ([1], "it holds a list, not a dictionary"),
        ({"labels": [1]}, "no data of n x 3072 bytes"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, "no data of n x 3072 bytes"),
        ({"data": np.zeros((1, 3072), np.uint8), "fine_labels": [1]}, "no list of labels"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}, "no list of labels"),
        ({"data": np.zeros((3, 3072), np.uint8), "labels": [1, 2]}, "3 images but 2 labels"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "labels from 10 to 10, but there are 10 classes"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "labels from -1"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [2**70]}, "labels from 1180591620717411303424"),
    ],
)
def test_a_wrong_python_batch_is_named(batch: Any, line: str) -> None:
    content = batch if isinstance(batch, bytes) else pickle.dumps(batch, protocol=2)
    with pytest.raises(BadInput, match=f"^batch: .*{line.removeprefix('batch: ')}|^{line}$"):
        parse(content, LABELS["cifar10"], HERE)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is empty"),
        (bytes(3072), "3,072 bytes are not whole records of 3,073"),
        (bytes(2 * 3073 - 1), "not whole records"),
        (b"\x0a" + bytes(3072), "labels from 10 to 10, but there are 10 classes"),
    ],
)
def test_a_wrong_binary_batch_is_named(content: bytes, line: str) -> None:
    with pytest.raises(BadInput, match=rf"^batch\.bin: .*{line}"):
        parse(content, LABELS["cifar10"], RECORDS)


def _idx(array: np.ndarray) -> bytes:
    """Magic number, sizes and data, big-endian, as on the page of MNIST: 0x803 for images, 0x801 for labels."""
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("shape", [(5,), (3, 4, 2)])
@pytest.mark.parametrize("packed", [False, True])
def test_an_idx_file_is_read(tmp_path: Path, shape: tuple[int, ...], packed: bool) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(_idx(array)) if packed else _idx(array))
    assert np.array_equal(read_idx(path, len(shape)), array)


def test_a_published_label_file_begins_so() -> None:
    """The first bytes of train-labels-idx1-ubyte, with eight labels instead of 60,000: 5 0 4 1 9 2 1 3."""
    content = bytes.fromhex("00 00 08 01 00 00 00 08 05 00 04 01 09 02 01 03")
    assert parse_idx(content, 1, HERE).tolist() == [5, 0, 4, 1, 9, 2, 1, 3]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is empty"),
        (b"\x00\x00", "ends within its header, after 2 bytes"),
        (b"\x00\x00\x08\x01\x00\x00", "ends within its header, after 6 bytes"),
        (b"PNG!", "begins with 50 4e 47 21, an IDX file of 1 axes with 00 00 08 01"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "begins with 00 00 0d 01"),
        (b"\x00\x00\x08\x03" + bytes(12), "begins with 00 00 08 03"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03ab", "2 bytes of data, but 3 make 3"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x01ab", "2 bytes of data, but 1 make 1"),
        (b"\x00\x00\x08\x01\xff\xff\xff\xffab", "2 bytes of data, but 4294967295 make"),
    ],
)
def test_a_wrong_idx_file_is_named(content: bytes, line: str) -> None:
    with pytest.raises(BadInput, match=f"^batch: {line}"):
        parse_idx(content, 1, HERE)


@pytest.mark.parametrize("spoil", [lambda packed: packed[:-9], lambda packed: packed[:15] + b"!!" + packed[17:]])
def test_a_damaged_gzip_is_named(tmp_path: Path, spoil: Any) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(spoil(gzip.compress(_idx(np.random.default_rng(0).integers(0, 256, 500, np.uint8)))))
    with pytest.raises(BadInput, match=r"labels\.gz: cannot be read"):
        read_idx(path, 1)


@settings(max_examples=60)
@given(st.data())
def test_no_bytes_make_a_parser_fall_over(data: st.DataObject) -> None:
    """Valid files with some bytes changed, cut or added give arrays in range, or a line that names the file."""
    batch = _python2_batch(np.arange(3072, dtype=np.uint8)[None], [3])
    record = b"\x03\x05" + bytes(3072)
    cases: list[tuple[bytes, Any]] = [
        (_idx(np.arange(12, dtype=np.uint8).reshape(3, 2, 2)), lambda content: parse_idx(content, 3, HERE)),
        (record * 2, lambda content: parse(content, LABELS["cifar100"], RECORDS)),
        (batch, lambda content: parse(content, LABELS["cifar10"], HERE)),
    ]
    content, parser = data.draw(st.sampled_from(cases))
    spoilt = bytearray(content)
    near = st.one_of(st.integers(0, 400), st.integers(0, len(content) - 1)).map(lambda at: min(at, len(content) - 1))
    for place, value in data.draw(st.lists(st.tuples(near, st.integers(0, 255)), max_size=5)):
        spoilt[place] = value
    if data.draw(st.booleans()):
        cut = data.draw(near)
        spoilt = spoilt[:cut] + data.draw(st.binary(max_size=20)) + spoilt[cut + data.draw(st.integers(0, 8)) :]
    try:
        found = parser(bytes(spoilt))
    except BadInput as error:
        assert str(error).startswith(("batch: ", "batch.bin: ")) and "\n" not in str(error)
        return
    if isinstance(found, tuple):
        images, targets = found
        assert images.shape == (len(targets), 32, 32, 3) and images.dtype == np.uint8
        assert not len(targets) or (targets.min() >= 0 and targets.max() < 100)


def _save(path: Path, pixels: np.ndarray, **options: Any) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def test_a_picture_keeps_its_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    assert np.array_equal(load_picture(_save(tmp_path / "a.png", pixels), 0, False), pixels)
    assert np.array_equal(load_picture(_save(tmp_path / "g.png", pixels[:, :, 0]), 0, True), pixels[:, :, :1])
    assert np.array_equal(load_picture(tmp_path / "g.png", 0, False), np.repeat(pixels[:, :, :1], 3, 2))
    square = pixels[:, 1:6]  # 5 x 7: the middle 5 columns, nothing to resize
    assert np.array_equal(load_picture(tmp_path / "a.png", 5, False), square)
    deep = (pixels[:, :, 0].astype(np.uint16) << 8) + 77
    for name in ("d.png", "d.pgm", "d.tif"):
        assert np.array_equal(load_picture(_save(tmp_path / name, deep), 0, True), pixels[:, :, :1]), name


def test_grey_is_the_weighted_sum_of_colours(tmp_path: Path) -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]]], np.uint8)
    assert load_picture(_save(tmp_path / "c.png", colours), 0, True).ravel().tolist() == [76, 150, 29, 9]


def test_exif_turns_a_picture_upright(tmp_path: Path) -> None:
    """Orientation 6: the first row of the file is the right-hand side of the picture."""
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = load_picture(_save(tmp_path / "t.jpg", pixels, exif=exif, quality=95), 0, False)
    assert turned.shape == (32, 16, 3)
    assert turned[:, 8:].min() > 200 and turned[:, :8].max() < 50


def test_resizing_keeps_flat_areas_and_proportions(tmp_path: Path) -> None:
    """300 x 600, in thirds of red, green and blue: the middle square has a quarter of each outer one."""
    pixels = np.zeros((300, 600, 3), np.uint8)
    for c in range(3):
        pixels[:, c * 200 : (c + 1) * 200, c] = 250
    for path in (_save(tmp_path / "w.png", pixels), _save(tmp_path / "w.jpg", pixels, quality=95)):
        small = load_picture(path, 60, False).astype(int)
        assert small.shape == (60, 60, 3)
        for columns, c in ((slice(0, 8), 0), (slice(12, 48), 1), (slice(52, 60), 2)):
            wanted = np.eye(3, dtype=int)[c] * 250
            assert np.abs(small[:, columns] - wanted).max() <= 8, (path, c)


@pytest.mark.parametrize("shape", [(80_000, 1, 3), (1, 80_000, 3)])
def test_a_strip_that_would_fill_the_memory_is_named(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match=r"s\.png: cannot be read: .* pixels would become 81,920,000"):
        load_picture(_save(tmp_path / "s.png", np.zeros(shape, np.uint8)), 32, False)


def test_transparency_lies_on_white(tmp_path: Path) -> None:
    pixels = np.array([[[10, 20, 30, 255], [10, 20, 30, 0]]], np.uint8)
    assert load_picture(_save(tmp_path / "a.png", pixels), 0, False).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    grey = np.array([[10 << 8, 20 << 8, (20 << 8) + 1]], np.uint16)
    path = _save(tmp_path / "g.png", grey, transparency=20 << 8)
    assert load_picture(path, 0, True).tolist() == [[[10], [255], [20]]]


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda content: b"", "is empty"),
        (lambda content: b"<html>not found</html>", "not an image in a format that Pillow reads"),
        (lambda content: content[: len(content) // 2], "cannot be read"),
        (lambda content: content[:8], "not an image|cannot be read"),
    ],
)
@pytest.mark.parametrize("name", ["p.png", "p.jpg"])
def test_a_file_that_is_no_picture_is_named(tmp_path: Path, name: str, spoil: Any, line: str) -> None:
    path = _save(tmp_path / name, np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BadInput, match=rf"p\.\w+: ({line})"):
        load_picture(path, 32, False)
