"""Archives and scripts of Kaldi: what real writers write, byte layouts, and whatever else may lie where one is."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpitrain.data.importers.kaldi_archive import Archives, Pointer, places
from mpitrain.errors import BadInput

kaldiio = pytest.importorskip("kaldiio", reason="extra kaldi is not installed")

# The first number has no point: a reader that guesses types from it would take 0.5 for 0.
MATRICES = {"a-1": np.array([[0, 0.5, 2], [1, -3, 4.25]], np.float32), "ক": np.full((1, 3), 1e-3, np.float32)}
VECTORS = {"a-1": np.array([7, 0, 2**31 - 1], np.int32), "ক": np.array([5], np.int32)}
MATRIX = b"\0BFM \4" + struct.pack("<i", 2) + b"\4" + struct.pack("<i", 3) + MATRICES["a-1"].tobytes()
INTEGERS = b"\0B\4" + struct.pack("<i", 2) + b"".join(b"\4" + struct.pack("<i", number) for number in (7, -1))


def _matrices(path: Path) -> dict[str, np.ndarray]:
    with Archives() as archives:
        return {key: archives.matrix(place) for key, place in places(path).items()}


def _integers(path: Path) -> dict[str, np.ndarray]:
    with Archives() as archives:
        found = places(path)
        lengths = {key: archives.length(place) for key, place in found.items()}
        read = {key: archives.integers(place) for key, place in found.items()}
    assert lengths == {key: len(own) for key, own in read.items()}
    return read


def _same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(one) == list(other)
    for key in one:
        assert one[key].dtype in (np.float32, np.int32) and np.array_equal(one[key], other[key]), key


@pytest.mark.parametrize("text", [False, True])
def test_what_kaldiio_writes(tmp_path: Path, text: bool) -> None:
    for name, arrays, read in (("m", MATRICES, _matrices), ("i", VECTORS, _integers)):
        ark, scp = tmp_path / f"{name}.ark", tmp_path / f"{name}.scp"
        kaldiio.save_ark(str(ark), arrays, scp=str(scp), text=text)
        _same(read(ark), arrays)
        _same(read(scp), arrays)
        (tmp_path / f"{name}.ark.gz").write_bytes(gzip.compress(ark.read_bytes()))
        _same(read(tmp_path / f"{name}.ark.gz"), arrays)


@pytest.mark.parametrize("text", ["", ",t"])
def test_what_kaldi_native_io_writes(tmp_path: Path, text: str) -> None:
    native = pytest.importorskip("kaldi_native_io", reason="kaldi-native-io is not installed")
    kinds = {"float": native.FloatMatrixWriter, "double": native.DoubleMatrixWriter, "int": native.Int32VectorWriter}
    for name, kind in kinds.items():
        arrays, read = (VECTORS, _integers) if name == "int" else (MATRICES, _matrices)
        with kind(f"ark,scp{text}:{tmp_path}/{name}.ark,{tmp_path}/{name}.scp") as writer:
            for key, array in arrays.items():
                writer.write(key, array.tolist() if name == "int" else array.astype(name.replace("float", "float32")))
        _same(read(tmp_path / f"{name}.ark"), arrays)
        _same(read(tmp_path / f"{name}.scp"), arrays)


def test_compressed_matrices_are_what_kaldi_makes_of_them(tmp_path: Path) -> None:
    native = pytest.importorskip("kaldi_native_io", reason="kaldi-native-io is not installed")
    matrix = np.random.default_rng(1).normal(size=(30, 5)).astype(np.float32)
    methods = ("kSpeechFeature", "kTwoByteAuto", "kOneByteAuto")
    script = f"{tmp_path}/c.ark,{tmp_path}/c.scp"
    with native.CompressedMatrixWriter(f"ark,scp:{script}") as writer:
        for method in methods:
            writer.write(method, matrix, method=getattr(native.CompressionMethod, method))
    with native.SequentialFloatMatrixReader(f"scp:{tmp_path}/c.scp") as reader:
        wanted = {key: np.array(own) for key, own in reader}
    found = _matrices(tmp_path / "c.ark")
    assert tuple(found) == methods
    for key in methods:
        assert np.allclose(found[key], wanted[key], atol=2e-6) and np.abs(found[key] - matrix).max() < 0.05


def test_two_byte_compression_by_hand(tmp_path: Path) -> None:
    # minimum −1, range 2: 0 is −1, 65535 is 1, 13107 is a fifth of the way
    content = b"\0BCM2 " + struct.pack("<ffii", -1, 2, 1, 3) + struct.pack("<HHH", 0, 13107, 65535)
    (tmp_path / "c.ark").write_bytes(b"k " + content)
    assert _matrices(tmp_path / "c.ark")["k"] == pytest.approx(np.array([[-1, -0.6, 1]]), abs=1e-6)


def test_the_published_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.ark"
    path.write_bytes(b"k " + MATRIX + b"l " + MATRIX)
    assert places(path) == {"k": Pointer(str(path), 2), "l": Pointer(str(path), len(MATRIX) + 4)}
    assert np.array_equal(_matrices(path)["l"], MATRICES["a-1"])
    path.write_bytes(b"k " + INTEGERS + b"e \0B\4\0\0\0\0")
    assert [own.tolist() for own in _integers(path).values()] == [[7, -1], []]
    path.write_bytes(b"k 7 -1 \ne \nf\n")
    assert [own.tolist() for own in _integers(path).values()] == [[7, -1], [], []]


def test_rows_and_columns_of_a_script(tmp_path: Path) -> None:
    kaldiio.save_ark(str(tmp_path / "m.ark"), {"k": np.arange(20, dtype=np.float32).reshape(5, 4)})
    (tmp_path / "m.scp").write_text(
        f"rows {tmp_path}/m.ark:2[1:2]\nboth {tmp_path}/m.ark:2[3:4,0:1]\ncolumns {tmp_path}/m.ark:2[,3:3]\n"
        f"rounded {tmp_path}/m.ark:2[3:7]\nfar {tmp_path}/m.ark:2[3:8]\nafter {tmp_path}/m.ark:2[5:6]\n"
        f"wide {tmp_path}/m.ark:2[0:1,3:4]\n"
    )
    found = places(tmp_path / "m.scp")
    with Archives() as archives:
        assert archives.matrix(found["rows"]).tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
        assert archives.matrix(found["both"]).tolist() == [[12, 13], [16, 17]]
        assert archives.matrix(found["columns"]).ravel().tolist() == [3, 7, 11, 15, 19]
        assert archives.matrix(found["rounded"]).tolist() == [[12, 13, 14, 15], [16, 17, 18, 19]]  # Kaldi takes these
        for key, cut in (("far", "3:8"), ("after", "5:6"), ("wide", "0:1,3:4")):
            with pytest.raises(BadInput, match=rf"m.ark:2: .*\[{cut}\] of an object of shape \(\d, 4\)"):
                archives.matrix(found[key])


def test_many_archives_are_not_open_at_once(tmp_path: Path) -> None:
    lines = []
    for number in range(60):
        kaldiio.save_ark(str(tmp_path / f"{number}.ark"), {"k": np.full((1, 1), number, np.float32)})
        lines.append(f"k{number} {tmp_path}/{number}.ark:2\n")
    (tmp_path / "m.scp").write_text("".join(lines))
    with Archives() as archives:
        read = [archives.matrix(place).item() for place in places(tmp_path / "m.scp").values()]
        assert read == list(range(60)) and len(archives._open) < 20


HUGE = struct.pack("<i", 2**31 - 1)
FAULTS: dict[str, tuple[bytes, str]] = {
    "zero-byte": (b"", "is empty"),
    "truncated matrix": (b"k " + MATRIX[:-1], "truncated: 24 bytes should follow, there are 23"),
    "truncated head": (b"k " + MATRIX[:9], "truncated"),
    "truncated integers": (b"k " + INTEGERS[:-3], "truncated"),
    "no end of the type": (b"k \0BFLOATMATRIX ", "unknown type"),
    "another type": (b"k \0BFV \4" + struct.pack("<i", 0), "type FV, neither a matrix nor integers"),
    "pickled": (b"k PKL\x80\x04N.", "not a Kaldi object"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a Kaldi object"),
    "zeros": (bytes(5000), "not a Kaldi object"),
    "no key": (b" " + MATRIX, "expected a key and an object"),
    "key alone": (b"key", "expected a key and an object"),
    "letters": (b"k 1 2 x\n", "not a Kaldi object"),
    "open bracket": (b"k  [\n 1 2\n 3 4\n", "a bracket that nothing closes"),
    "ragged": (b"k  [\n 1 2\n 3 ]\n", "rows of several lengths"),
    "negative size": (b"k \0BFM \4" + struct.pack("<i", -2) + b"\4" + struct.pack("<i", 3), "-2 rows and 3 columns"),
    "huge": (b"k \0BDM \4" + HUGE + b"\4" + HUGE, "truncated"),
    "huge and compressed": (b"k \0BCM " + struct.pack("<ff", 0, 1) + HUGE + HUGE, "truncated"),
    "more integers than there are": (b"k \0B\4" + HUGE, "truncated"),
    "wide integers": (b"k \0B\4" + struct.pack("<i", 1) + b"\x08" + bytes(4), "not integers of 4 bytes"),
    "twice": (b"k 1\nk 2\n", "k is there twice"),
}


def _either(path: Path, name: str) -> None:
    (_integers if "integers" in name or "letters" in name else _matrices)(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_spoilt_archive_is_named_in_one_line(tmp_path: Path, name: str, packed: bool) -> None:
    content, line = FAULTS[name]
    path = tmp_path / ("a.ark.gz" if packed else "a.ark")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(BadInput) as caught:
        _either(path, name)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert line in str(caught.value) or (packed and "truncated" in str(caught.value)), caught.value


def test_a_spoilt_gzip_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"k%d 1 2 3\n" % number for number in range(5000)))
    for content in (whole[: len(whole) // 2], b"k 1 2 3\n", whole[:500] + bytes(50) + whole[550:]):
        (tmp_path / "a.gz").write_bytes(content)
        with pytest.raises(BadInput, match=r"a\.gz"):
            _integers(tmp_path / "a.gz")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("k copy-feats ark:x ark:- |", "line 1: k is a command, which is not run"),
        ("k", "line 1: expected a key and where it lies"),
        ("k none.ark:2", "none.ark: no such file; scripts count paths from where the command is run"),
        ("k /none.ark:2", "/none.ark: no such file"),
        ("k {}/a.ark:99999", "a.ark:99999: not a Kaldi object: the file ends here"),
        ("k {}/a.ark:1", "a.ark:1: not a Kaldi object"),
        ("k {}/a.ark:99999999999999999999999", "not a Kaldi object"),
        ("k {}", "Is a directory"),
    ],
)
def test_a_spoilt_script_is_named(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "a.ark").write_bytes(b"k " + MATRIX)
    (tmp_path / "a.scp").write_text(line.format(tmp_path) + "\n")
    with pytest.raises(BadInput) as caught:
        _matrices(tmp_path / "a.scp")
    assert said in str(caught.value)


def test_a_script_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.scp").write_bytes(b"k \xff\xfe\n")
    with pytest.raises(BadInput, match=r"a\.scp: not text in UTF-8"):
        places(tmp_path / "a.scp")


ARCHIVES = (b"k " + MATRIX + b"l " + MATRIX, b"k " + INTEGERS, b"k  [\n 1 2\n 3 4 ]\nl  [ 1 2 ]\n", b"k 1 2 3\nl 4\n")
ROUGH = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@ROUGH
@given(data=st.data())
def test_spoilt_bytes_are_refused_or_read(tmp_path: Path, data: st.DataObject) -> None:
    """Nothing but BadInput comes of an archive some of whose bytes are others, or missing."""
    content = bytearray(data.draw(st.sampled_from(ARCHIVES)))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    _only_bad_input(tmp_path, bytes(content[: data.draw(st.integers(0, len(content)))]))


@ROUGH
@given(content=st.binary(max_size=60))
def test_any_bytes_are_refused_or_read(tmp_path: Path, content: bytes) -> None:
    _only_bad_input(tmp_path, content)
    _only_bad_input(tmp_path, b"k \0B" + content)


def _only_bad_input(folder: Path, content: bytes) -> None:
    path = folder / "a.ark"
    path.write_bytes(content)
    readers: tuple[Callable[[Path], object], ...] = (_matrices, _integers)
    for read in readers:
        try:
            read(path)
        except BadInput as error:
            assert str(path) in str(error) and "\n" not in str(error)
