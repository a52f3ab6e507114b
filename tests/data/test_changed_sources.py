"""A source whose files change: no importer keeps shards of what they held before.

The changed files have the names, sizes and modification times of the old ones. Each corpus of `mutated.py` is made
twice, the second time of other random numbers.
"""

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.__main__ import parser
from mpitrain.data.importers import arrays, importing, plan, recorded, text
from mpitrain.data.importers.plan import CorpusPlan
from mpitrain.errors import BadInput

from . import mutated
from .alone import imported, read

NEEDS = {"kaldi": "kaldiio", "wav": "kaldi_native_fbank", "png": "PIL"}
#: One for each way in which an importer finds its files.
FORMS = {
    "kaldi": ("kaldi", "kaldi-scp-cmvn", "kaldi-text", "kaldi-packed"),
    "wav": ("wav", "wav-frames"),
    "mnist": ("mnist", "mnist-gz"),
    "cifar10": ("cifar", "cifar-binary", "cifar-tar", "cifar-gz"),
    "images": ("png",),
    "arrays": ("npz", "npz-packed", "arrays-h5"),
    "text": ("text",),
}
EVERY = [form for forms in FORMS.values() for form in forms]


class Source:
    """A corpus in `in/`, and in `other/` files of the same names that hold other samples."""

    def __init__(self, folder: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.here, self.other = folder, folder / "in", folder / "other"
        self.words = self._made(form)
        self.here.rename(self.other)
        with monkeypatch.context() as patch:
            drawn = np.random.default_rng
            patch.setattr(np.random, "default_rng", lambda seed: drawn([seed, 1]))
            assert self._made(form) == self.words
        self.changing = [path for path in self._files() if path.read_bytes() != self._twin(path).read_bytes()]

    def _made(self, form: str) -> str:
        self.here.mkdir()
        return mutated.FORMATS[form](self.here)

    def _files(self) -> list[Path]:
        return sorted(path for path in self.here.rglob("*") if path.is_file())

    def _twin(self, path: Path) -> Path:
        return self.other / path.relative_to(self.here)

    def planning(self, out: Path) -> Callable[[], CorpusPlan]:
        """The plan, as the command line makes it."""
        options = parser("prepare").parse_args(["prepare", *shlex.split(self.words), str(out)])
        return lambda: options.planning(options)

    def change(self, *paths: Path) -> None:
        """Exchange these files with the others' samples, in place, and set their times back."""
        for path in paths:
            before, content = path.stat(), path.read_bytes()
            path.write_bytes(self._twin(path).read_bytes())
            self._twin(path).write_bytes(content)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def relabel(self) -> list[Path]:
        """Let the label file, which has no random numbers, differ; the files that now do."""
        path = self.other / "labels.txt"
        if not path.exists():
            return []
        text = path.read_text()
        path.write_text(text.replace(" a\n", " 2\n", 1) if " a\n" in text else text.replace(" 3 0 5", " 0 3 5", 1))
        return [self.here / "labels.txt"]


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """The corpus of a form, which is imported into several shards where it has several files or samples."""
    form = request.param
    for name, module in NEEDS.items():
        if form.startswith(name):
            pytest.importorskip(module)
    for module in (plan, recorded, arrays, text):
        monkeypatch.setattr(module, "LARGEST", 1)
    return Source(tmp_path, form, monkeypatch)


def test_every_importer_is_here() -> None:
    """CIFAR-100 is read as CIFAR-10 is; the digits and synthesised speech have no files; fonts have a test of their
    own, as there are none of random numbers."""
    commands: Any = parser("prepare")._subparsers
    sources = commands._group_actions[0].choices["prepare"]._subparsers
    assert set(sources._group_actions[0].choices) == {*FORMS, "cifar100", "digits", "glyphs", "speech"}


@pytest.mark.parametrize("source", EVERY, indirect=True)
def test_a_finished_import_of_files_that_have_changed_is_refused(source: Source) -> None:
    out = source.folder / "out"
    planning = source.planning(out)
    imported(out, planning)
    kept = _content(out)
    assert source.changing
    for paths in (source.changing, *([path] for path in (*source.changing, *source.relabel()))):
        if len(paths) == 1 and not _fits(paths[0], source):
            continue
        source.change(*paths)
        with pytest.raises(BadInput, match=r"already holds shards of another corpus.*files.*have changed"):
            imported(out, planning)
        source.change(*paths)
        assert _content(out) == kept
    imported(out, planning)


def _fits(path: Path, source: Source) -> bool:
    """Whether the other file can stand beside the old ones: in text, the places in scripts would be others."""
    return path.stat().st_size == source._twin(path).stat().st_size or path.suffix not in (".ark", ".scp")


@pytest.mark.parametrize("point", ["write_shard", "set_attributes"])
@pytest.mark.parametrize("source", EVERY, indirect=True)
def test_an_interrupted_import_starts_over_where_files_have_changed(
    source: Source, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while shards are made, or while they get the statistics of the corpus."""
    out, wanted = source.folder / "out", source.folder / "wanted"
    module = plan if point == "write_shard" else importing
    planning, calls, real = source.planning(out), [0], getattr(module, point)

    def stopping(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] >= 2:
            raise BadInput("interrupted")
        return real(*given)

    count = sum(map(len, planning().chunks.values()))
    with monkeypatch.context() as patch:
        patch.setattr(module, point, stopping)
        with pytest.raises(BadInput, match="interrupted"):
            imported(out, planning)
    assert len(list(out.glob(".*.h5"))) == (1 if point == "write_shard" else count) > 0 and count > 1
    alone = point == "set_attributes" and _fits(source.changing[0], source)
    source.change(*source.changing[: 1 if alone else None])
    imported(out, planning)
    imported(wanted, planning)
    assert _content(out) == _content(wanted)


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("[!.]*"))}


@pytest.mark.parametrize("source", ["png", "npz", "mnist", "cifar-tar"], indirect=True)
def test_the_same_files_elsewhere_in_time_are_the_same_source(source: Source, capsys: Any) -> None:
    """What counts is what they hold: a fresh copy with other times and inodes goes on with the shards."""
    out = source.folder / "out"
    planning = source.planning(out)
    imported(out, planning)
    shutil.copytree(source.here, source.folder / "copy", copy_function=shutil.copyfile)
    shutil.rmtree(source.here)
    (source.folder / "copy").rename(source.here)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    imported(out, planning)
    assert before == {path: path.stat().st_mtime_ns for path in out.iterdir()}


def test_a_file_that_changes_during_the_import_is_named(tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"\1")

    def make(chunk: int) -> dict[str, np.ndarray]:
        if chunk == 1:
            path.write_bytes(b"\2")
            os.utime(path, ns=(1, 1))
        value = path.read_bytes()[0]
        return {"images": np.full((1, 2, 2, 1), value, np.uint8), "targets": np.zeros(1, np.int32)}

    make_plan = lambda: CorpusPlan("images", {"source": "toys"}, {"train": [0, 1, 2]}, lambda _: [path], make)  # noqa: E731
    with pytest.raises(BadInput, match="source: has changed while it was being imported"):
        imported(tmp_path / "out", make_plan)
    assert not list((tmp_path / "out").glob("[!.]*"))
    make_plan().make(1)
    imported(tmp_path / "out", lambda: CorpusPlan(**{**vars(make_plan()), "chunks": {"train": [0, 2, 3]}}))
    assert (read(tmp_path / "out")["train"]["images"] == 2).all()


SMALL = """
from mpitrain.__main__ import main
from mpitrain.data.importers import plan
plan.PORTION = 1000
raise SystemExit(main())
"""


def test_any_number_of_ranks_tells_a_change(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Each rank digests some portions of the file; together they know all of it."""
    (tmp_path / "program.py").write_text(SMALL)
    path, targets = tmp_path / "a.npz", np.arange(20) % 3
    words = "prepare", "arrays", "a.npz", "out", "--images", "images", "--jobs", "1"
    for status, value, ranks in ((0, 1, 1), (0, 1, 3), (2, 200, 3), (0, 1, 2)):
        np.savez(path, images=np.full((20, 9, 9), value, np.uint8), targets=targets)
        os.utime(path, ns=(1, 1))
        ended = launch(ranks, *words, program=("program.py",))
        assert ended.status == status, ended.err
        assert ("files that have changed since" in ended.err) == bool(status)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    plan = CorpusPlan("images", {"source": "toys"}, {"train": [0]}, lambda _: [tmp_path / "pipe"], _never)
    with pytest.raises(BadInput, match="pipe: not a regular file"):
        imported(tmp_path / "out", lambda: plan)


def _never(chunk: int) -> dict[str, np.ndarray]:
    raise AssertionError(chunk)


@pytest.mark.parametrize("portion", [1, 3, 5, 100])
def test_a_digest_covers_every_byte_and_where_files_end(tmp_path: Path, portion: int, monkeypatch: Any) -> None:
    """Whatever is read at once; `portions` cover each byte of each file once."""
    from mpitrain.data.importers import plan

    monkeypatch.setattr(plan, "PORTION", portion)
    found = set()
    contents = ([b"abcdefg", b"", b"h"], [b"abcdef", b"", b"gh"], [b"abcdefg", b"h", b""], [b"abcdefG", b"", b"h"])
    for number, files in enumerate(contents):
        paths = [tmp_path / f"{number}-{place}" for place in range(len(files))]
        for path, content in zip(paths, files, strict=True):
            path.write_bytes(content)
        portions = plan.portions(plan.versions(paths))
        extents = [extent for each in portions for extent in each]
        assert sum(extent.length for extent in extents) == 8
        assert all(sum(extent.length for extent in each) <= portion for each in portions)
        found.add(tuple(plan.digest_extents(each) for each in portions))
    assert len(found) == len(contents)
