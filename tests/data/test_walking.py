"""The files below a source: what links lead to, what is hidden, and shards that are written among them."""

from pathlib import Path

import pytest
from PIL import Image

from mpitrain.__main__ import main
from mpitrain.data.importers.walking import files_below, folders_in


def _touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_links_are_followed_and_each_folder_is_read_once(tmp_path: Path) -> None:
    """By its own name, where there is one; a link that leads upwards ends, and one that leads nowhere is named."""
    source = tmp_path / "in"
    _touch(source / "b/c/1", source / "b/2", source / "3", tmp_path / "far/4")
    for name, to in (("a", "b"), ("b/up", ".."), ("far", "../far"), ("twice", "../far"), ("5", "nowhere"), ("6", "6")):
        (source / name).symlink_to(to)
    found = [str(path.relative_to(source)) for path in files_below(source)]
    assert found == ["3", "5", "6", "b/2", "b/c/1", "far/4"]


def test_what_is_hidden_or_written_is_no_source(tmp_path: Path) -> None:
    """Shards of another folder are none either; a hidden source is read all the same."""
    source, out = tmp_path / ".in", tmp_path / ".in/a/out"
    _touch(source / "1", source / ".2", source / ".git/3", out / "4", source / "other/train-00000-of-00001.h5")
    (source / "linked").symlink_to(out)
    assert files_below(source, out) == [source / "1"]
    assert [path.name for path in folders_in(source, out)] == ["a", "other"]
    assert files_below(source, source) == files_below(source, tmp_path / "missing") == [source / "1", out / "4"]


@pytest.mark.parametrize("kind", ["images", "text"])
def test_shards_beside_their_source(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command finds all done, and shards are no text."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        Path(name).mkdir()
        for number in range(30):
            Image.new("RGB", (4, 4)).save(f"{name}/{number}.png")
    for out in ("shards", "shards", "shards2") if kind == "text" else ("shards", "shards"):
        assert main(["prepare", kind, ".", out]) == 0, capsys.readouterr().err
    if kind == "text":
        sizes = [sum(path.stat().st_size for path in Path(out).iterdir()) for out in ("shards", "shards2")]
        assert sizes[0] == sizes[1]


def test_pictures_whose_links_lead_nowhere_are_broken_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in/a").mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (4, 4)).save(tmp_path / f"in/a/{number}.png")
        (tmp_path / f"in/a/gone-{number}.png").symlink_to("nowhere")
    words = ["prepare", "images", str(tmp_path / "in"), str(tmp_path / "out")]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out.count("gone-") == 4 and "(and 3 more, named above); --skip-broken leaves such files out" in err
    assert main([*words, "--skip-broken"]) == 0
    assert capsys.readouterr().out.count("left out: ") == 4


def test_a_text_whose_link_leads_nowhere_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _touch(tmp_path / "in/a.txt")
    (tmp_path / "in/b.txt").symlink_to("nowhere")
    assert main(["prepare", "text", str(tmp_path / "in"), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"mpitrain: {tmp_path}/in/b.txt: No such file or directory\n"
