"""The data of benchmarks: made once, described, and said in one line where they cannot be."""

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mpitrain.__main__ import main
from mpitrain.data.reader import digest_of
from mpitrain.errors import BadInput
from mpitrain.report.benchmarks import known
from mpitrain.report.benchmarks.known import HERE, TOLD, make

SOURCES = "".join(f"value_{number} = {number}\n" for number in range(40))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty small files in place of the pinned wheel's."""
    for number in range(30):
        path = tmp_path / "package" / f"file{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(SOURCES)
    monkeypatch.setattr(known, "_wheel", lambda scratch: tmp_path / "package")
    return tmp_path / "package"


def program(folder: Path, name: str, body: str) -> None:
    """An executable Python program."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!{sys.executable}\nimport os, sys\nfrom pathlib import Path\n{body}")
    (folder / name).chmod(0o755)


def test_they_are_made_once_and_described(wheel: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A second call reads what the first has written; nothing but the data is left."""
    folder = Path("runs/bytes")
    make("bytes", folder)
    told = json.loads((folder / TOLD).read_text())
    assert told["benchmark"] == "bytes" and told["of"] == {"sympy": "1.14.0"} and told["python"] and told["numpy"]
    assert told["checksum"] == digest_of(folder) and len(digest_of(folder)) == 16
    said = capfd.readouterr().out
    assert "making the data in runs/bytes" in said and "train" in said and told["checksum"] in said
    made = (folder / TOLD).stat().st_mtime_ns
    make("bytes", folder)
    said = capfd.readouterr().out
    assert said.count("\n") == 1 and told["checksum"] in said and str(folder / TOLD) in said
    assert (folder / TOLD).stat().st_mtime_ns == made and [path.name for path in Path("runs").iterdir()] == ["bytes"]


def test_another_node_may_make_them_meanwhile(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same folder, by a process that may have the same number."""
    mine, made = known.MAKERS["bytes"], Path("runs/bytes")

    def at_once(scratch: Path, folder: Path) -> dict[str, object]:
        monkeypatch.setitem(known.MAKERS, "bytes", mine)
        make("bytes", made)
        return mine(scratch, folder)

    monkeypatch.setitem(known.MAKERS, "bytes", at_once)
    make("bytes", made)
    assert (made / TOLD).exists() and [path.name for path in Path("runs").iterdir()] == ["bytes"]


def test_the_checksum_is_that_of_the_arrays(wheel: Path) -> None:
    make("bytes", Path("one"))
    make("bytes", Path("two"))
    assert digest_of(Path("one")) == digest_of(Path("two"))
    (wheel / "file0.py").write_text(SOURCES.replace("value", "other"))
    make("bytes", Path("three"))
    assert digest_of(Path("three")) != digest_of(Path("one"))


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"of": {}}', "null"])
def test_a_record_without_its_keys_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("runs/benchmarks/speech") / TOLD
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert main(["compare", "sgd", "--on", "speech"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{path}: no record of a benchmark" in said


def test_what_makes_them_fails_in_one_line(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left that the next call would take for data."""
    for path in wheel.iterdir():
        path.unlink()
    assert main(["compare", "sgd", "--on", "bytes"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no file of text" in said and not list(Path("runs/benchmarks").iterdir())


def test_the_wheel_is_downloaded_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip download` puts it into the folder, from which its modules are taken."""
    monkeypatch.setattr(known, "VERSION", "0.0.1")
    words: list[list[str]] = []

    def run(command: list[str]) -> None:
        words.append(command)
        with zipfile.ZipFile(tmp_path / "sympy-0.0.1-py3-none-any.whl", "w") as archive:
            archive.writestr("sympy/one.py", SOURCES)

    monkeypatch.setattr(known, "run", run)
    assert (known._wheel(tmp_path) / "one.py").read_text() == SOURCES
    assert words[0][-1] == "sympy==0.0.1" and "download" in words[0]


def test_the_fonts_of_packages_are_unpacked_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder a package, made before dpkg-deb, which makes only the last of a path; symbols are left out."""
    matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib's fonts")
    pytest.importorskip("PIL", reason="needs Pillow (the extra mpitrain[images])")
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    download = "for name in sys.argv[3:]:\n    Path(f'{name}_1_all.deb').write_text(name)\n"
    program(tmp_path / "bin", "apt-get", download)
    unpack = f"""
out, names = Path(sys.argv[3]), ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral")
out.mkdir()
name = names[sum(Path(sys.argv[2]).read_bytes()) % 4]
(out / "font.ttf").write_bytes((Path({str(fonts)!r}) / f"{{name}}.ttf").read_bytes())
(out / "D050000L.otf").write_text("symbols, which no font reader takes")
"""
    program(tmp_path / "bin", "dpkg-deb", unpack)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(known, "run", _small(known.run))
    versions = known.MAKERS["glyphs"](tmp_path / "scratch", tmp_path / "out")
    packages = (HERE / "fonts.txt").read_text().split()
    assert versions["packages"] == [f"{name}_1_all" for name in sorted(packages)] and versions["Pillow"]
    assert len(list((tmp_path / "scratch" / "fonts").iterdir())) == len(packages) and list((tmp_path / "out").iterdir())


def _small(run: Callable[..., None]) -> Callable[..., None]:
    """`run` with fewer images."""

    def smaller(words: list[str], *rest: object) -> None:
        run([*words, *(["--train", "100", "--test", "50"] if "glyphs" in words else [])], *rest)

    return smaller


def test_packages_that_are_not_listed_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "apt-get", "sys.exit('E: Unable to locate package fonts-3270')\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(BadInput, match=r"Unable to locate package fonts-3270; `apt-get update` brings"):
        make("glyphs", tmp_path / "glyphs")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"apt-get: .*; this benchmark's data are made with it$"):
        make("glyphs", tmp_path / "glyphs")
