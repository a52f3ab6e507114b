"""Glyphs of fonts: whole folders are held out, and the same seed draws the same images."""

import struct
from pathlib import Path

import pytest

from mpitrain.__main__ import main
from mpitrain.data.importers.plan import CorpusPlan
from mpitrain.errors import BadInput

from .alone import imported, planned

pytest.importorskip("PIL", reason="needs Pillow (the extra mpitrain[images])")
matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib's fonts")


@pytest.fixture
def fonts(tmp_path: Path) -> Path:
    """Four folders with a font each, and one of symbols."""
    there = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "STIXSizOneSymReg"):
        (tmp_path / "fonts" / name).mkdir(parents=True)
        (tmp_path / "fonts" / name / f"{name}.ttf").write_bytes((there / f"{name}.ttf").read_bytes())
    return tmp_path / "fonts"


def test_no_typeface_is_in_two_parts(fonts: Path) -> None:
    told = planned("glyphs", fonts, "--train", 100, "--test", 20)
    files = {part: {path for chunk in chunks for path in told.files(chunk)} for part, chunks in told.chunks.items()}
    assert all(files.values()) and sum(map(len, files.values())) == len(set().union(*files.values())) == 4
    assert not any("SizOne" in path.name for paths in files.values() for path in paths)


def test_it_is_drawn_again_the_same(fonts: Path) -> None:
    told, again = (planned("glyphs", fonts, "--train", 50, "--test", 20) for _ in range(2))
    (one,), (two,) = ([made.make(chunk) for chunk in made.chunks["test"]] for made in (told, again))
    assert one["images"].shape == (20, 24, 24, 1) and one["images"].std() > 20
    assert (one["images"] == two["images"]).all() and (one["targets"] == two["targets"]).all()


def test_shards_of_fonts_that_have_changed_are_refused(fonts: Path, tmp_path: Path) -> None:
    """Of the same names and families: only a byte after the last table is another."""

    def planning() -> CorpusPlan:
        return planned("glyphs", fonts, "--train", 20, "--test", 20)

    imported(tmp_path / "out", planning)
    imported(tmp_path / "out", planning)
    for path in fonts.rglob("*.ttf"):
        path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BadInput, match=r"already holds shards of another corpus.*files.*have changed"):
        imported(tmp_path / "out", planning)


def test_too_few_folders_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none").mkdir()
    assert main(["prepare", "glyphs", str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert "0 folders with a .ttf" in capsys.readouterr().err


def test_a_font_that_cannot_be_drawn_is_named(fonts: Path) -> None:
    path = fonts / "DejaVuSans" / "DejaVuSans.ttf"
    whole = bytearray(path.read_bytes())
    start, length = struct.unpack_from(">II", whole, whole.index(b"glyf") + 8)  # as the table of tables says
    whole[start : start + length] = b"\x7f" * length
    path.write_bytes(whole)
    with pytest.raises(BadInput, match=r"DejaVuSans\.ttf: cannot be drawn: "):
        planned("glyphs", fonts, "--train", 20, "--test", 20)
