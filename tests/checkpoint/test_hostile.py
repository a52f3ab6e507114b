"""Checkpoints made with ill intent, all with right checksums: one line that names the file, status 2, little memory."""

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain import checkpoint
from mpitrain.checkpoint.files import MANIFEST, write_manifest
from mpitrain.checkpoint.state import State, checked
from mpitrain.errors import BadInput
from mpitrain.flat import Layout, Parameter
from mpitrain.protocols.server.adding import WorkerPast
from mpitrain.sampling.queue import Queue

ALLOWED = 300 << 10  # kB that a refusal may take
SMALL = 'model.layers=[{kind="fully-connected", units=8}, {kind="relu"}, {kind="fully-connected"}]'
KEYS = (SMALL, "run.progress=none", "run.evaluate_every=0")
NAMES = ("easgd", "sparse-delta", "block-momentum")
SECRET = 12345.0
HUGE = 3 << 30

Refused = Callable[..., None]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of three ranks for each of the algorithms."""
    return {name: tmp_path_factory.mktemp(name) / "run" for name in NAMES}


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """The test takes little memory; the machine is safe from one that fails."""
    limits, before = resource.getrlimit(resource.RLIMIT_DATA), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ALLOWED


@pytest.fixture
def refused(runs: dict[str, Path], simulated: Callable[..., Any], tmp_path: Path) -> Refused:
    """Spoil the checkpoint of a copy of a run, seal it, and resume from it: one line, which names the file."""

    def run(name: str, file: str, spoil: Callable[[Any], object], said: str = "", ranks: int = 3) -> None:
        keys = [word for key in (f"algorithm.name={name}", *KEYS) for word in ("--set", key)]
        if not runs[name].exists():
            assert simulated(3, *keys, "--set", "training.epochs=1", "--out", str(runs[name])).status == 0
        copy = shutil.copytree(runs[name], tmp_path / "copy")
        (folder,) = (copy / "checkpoints").glob("0*")
        with h5py.File(folder / file, "r+") as opened:
            spoil(opened)
        write_manifest(folder, ("config.toml", "corpus.json"))
        ended = simulated(ranks, "--resume", str(copy), "--set", "training.epochs=2")
        assert ended.status == 2 and ended.err.count("\n") == 1, ended
        assert ended.err.startswith(f"mpitrain: {folder / file}: ") and said in ended.err, ended.err

    return run


def numbers(**changed: object) -> Callable[[h5py.File], None]:
    """Change some of the numbers; None takes one away."""

    def spoil(file: h5py.File) -> None:
        told = {**json.loads(file.attrs["numbers"]), **changed}
        file.attrs["numbers"] = json.dumps({name: value for name, value in told.items() if value is not None})

    return spoil


def attribute(name: str, value: object) -> Callable[[h5py.File], None]:
    def spoil(file: h5py.File) -> None:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value

    return spoil


def replaced(name: str, make: Callable[[h5py.File], object]) -> Callable[[h5py.File], None]:
    def spoil(file: h5py.File) -> None:
        del file[name]
        make(file)

    return spoil


def ranges(*rows: tuple[int, ...], dtype: type = np.int64) -> Callable[[h5py.File], None]:
    table = np.array(rows, dtype)
    return replaced("ranges", lambda file: file.create_dataset("ranges", data=table, chunks=table.shape))


def unstored(name: str, shape: tuple[int, ...], dtype: type) -> Callable[[h5py.File], None]:
    """A data set of which nothing was ever written."""
    chunks = (min(1 << 16, shape[0]), *shape[1:])
    return replaced(name, lambda file: file.create_dataset(name, shape, dtype, chunks=chunks))


STATE = {
    "no JSON": (attribute("numbers", "{"), ""),
    "no object": (attribute("numbers", "[1]"), "its numbers have no names"),
    "nested": (attribute("numbers", "[" * 100_000), ""),
    "a number for numbers": (attribute("numbers", 7), "attribute numbers is not a text"),
    "no numbers": (attribute("numbers", None), "no attribute numbers"),
    "texts for numbers": (attribute("numbers", ["{}"] * 9), "attribute numbers is neither"),
    "an index of text": (numbers(index="x"), "its numbers: Expected `int`, got `str` - at `$.index`"),
    "a negative index": (numbers(index=-1), "$.index"),
    "a position beyond all": (numbers(position=10**30), "$.position"),
    "an infinite position": (numbers(position=float("inf")), "$.position"),
    "no samples": (numbers(samples=None), "samples"),
    "seconds that are none": (numbers(seconds=float("nan")), "$.seconds"),
    "losses of another form": (numbers(losses=[[1]]), "$.losses"),
    "losses of tables": (numbers(losses={"a": 1}), "$.losses"),
    "a first loss of text": (numbers(first_loss="x"), "$.first_loss"),
    "a rate of two numbers": (numbers(rate=[1, 2]), "$.rate"),
    "an endless rate": (numbers(rate=[0.0, float("inf"), 1.0, 0, 0]), "$.rate[1]"),
    "a layout of numbers": (attribute("layout", [1, 2]), "attribute layout is not a text"),
    "a group": (replaced("theta", lambda file: file.create_group("theta")), "theta is not a data set"),
    "no vector": (replaced("theta", lambda file: None), "no data set theta"),
    "another length": (replaced("theta", lambda file: file.create_dataset("theta", data=np.zeros(3))), "theta is"),
    "texts": (replaced("theta", lambda file: file.create_dataset("theta", data=[b"x"] * 610)), "theta is"),
    "complex": (replaced("theta", lambda file: file.create_dataset("theta", data=np.zeros(610, complex))), "theta is"),
    "huge": (unstored("theta", (HUGE,), np.float32), "theta would take"),
    "never stored": (unstored("theta", (610,), np.float32), "theta would take"),
    "huge ranges": (unstored("ranges", (HUGE, 4), np.int64), "ranges would take"),
    "negative ranges": (ranges((0, -5, 10, 4)), "$[0][1]"),
    "a negative epoch": (ranges((-1, 0, 10, 4)), "$[0][0]"),
    "empty ranges": (ranges((0, 0, 0, 4)), "$[0][2]"),
    "minibatches of nothing": (ranges((0, 0, 10, 0)), "$[0][3]"),
    "ranges beyond an epoch": (ranges((0, 1430, 10, 4)), "beyond the 1438 samples"),
    "ranges of three": (ranges((0, 0, 10)), "ranges are"),
    "ranges of fractions": (ranges((0, 0, 10, 4), dtype=float), "ranges are"),
}


@pytest.mark.parametrize("how", STATE)
def test_what_the_state_may_not_say(refused: Refused, how: str) -> None:
    spoil, said = STATE[how]
    refused("easgd", "state.h5", spoil, said)


PIECES: dict[str, tuple[str, str, Callable[[h5py.File], None], str]] = {
    "a worker's step of text": ("easgd", "rank-00001.h5", numbers(t="x"), "$.t"),
    "a worker without a step": ("easgd", "rank-00002.h5", numbers(t=None), "`t`"),
    "a worker's negative range": ("easgd", "rank-00001.h5", numbers(rest=[[0, -1, 5, 5]]), "$.rest[0][1]"),
    "a worker's range of text": ("easgd", "rank-00001.h5", numbers(stock=[["0", 0, 5, 5]]), "$.stock[0][0]"),
    "a worker's range beyond": ("easgd", "rank-00001.h5", numbers(rest=[[0, 1438, 5, 5]]), "beyond the 1438 samples"),
    "a worker's falls of the rate": ("easgd", "rank-00001.h5", numbers(falls=-1), "$.falls"),
    "a worker's losses": ("easgd", "rank-00001.h5", numbers(untold=[1]), "$.untold"),
    "a worker's endless losses": ("easgd", "rank-00001.h5", numbers(untold=[1, float("inf")]), "$.untold[1]"),
    "the master's ranges": ("easgd", "rank-00000.h5", numbers(again=[[0, 0, 5]]), "$.again[0]"),
    "a worker's vector": ("easgd", "rank-00001.h5", unstored("x", (HUGE,), np.float32), "x would take"),
    "a rank's step": ("block-momentum", "rank-00002.h5", numbers(t=[]), "$.t"),
    "a rank's steps since": ("block-momentum", "rank-00001.h5", numbers(since=-1), "$.since"),
    "a threshold of text": ("sparse-delta", "rank-00001.h5", numbers(threshold="1"), "$.threshold"),
    "a threshold of nothing": ("sparse-delta", "rank-00001.h5", numbers(threshold=0.0), "$.threshold"),
    "another residual": ("sparse-delta", "rank-00002.h5", unstored("residual", (9,), np.float32), "residual would"),
}


@pytest.mark.parametrize("how", PIECES)
def test_what_a_rank_s_piece_may_not_say(refused: Refused, how: str) -> None:
    refused(PIECES[how][0], *PIECES[how][1:])


@pytest.mark.parametrize("how", ["a threshold of text", "another residual"])
def test_what_a_piece_may_not_say_to_other_ranks(refused: Refused, how: str) -> None:
    """Of four, which share the residuals out: rank 1 and rank 2 take their numbers from the pieces of those."""
    refused(PIECES[how][0], *PIECES[how][1:], ranks=4)


# ---- other files


def elsewhere(file: h5py.File, name: str, how: str) -> None:
    """The values of `name` are those of another file."""
    shape, dtype, secret = file[name].shape, file[name].dtype, Path(file.filename).parent.parent / "secret.h5"
    with h5py.File(secret, "w", libver="latest") as other:
        other[name] = np.full(shape, SECRET, dtype)
        offset = other[name].id.get_offset()
    del file[name]
    if how == "external storage":
        file.create_dataset(name, shape, dtype, external=[(str(secret), offset, 610 * dtype.itemsize)])
    elif how == "virtual":
        layout = h5py.VirtualLayout(shape, dtype)
        layout[:] = h5py.VirtualSource(str(secret), name, shape)
        file.create_virtual_dataset(name, layout)
    elif how == "external link":
        file[name] = h5py.ExternalLink(str(secret), name)
    else:
        file["outside"] = h5py.ExternalLink(str(secret), "/")
        file[name] = h5py.SoftLink(f"/outside/{name}")


@pytest.mark.parametrize("how", ["external storage", "virtual", "external link", "soft link"])
@pytest.mark.parametrize(
    ("name", "file", "vector", "ranks"),
    [
        ("easgd", "state.h5", "theta", 3),
        ("easgd", "rank-00001.h5", "x", 3),
        ("sparse-delta", "rank-00001.h5", "residual", 3),
        ("sparse-delta", "rank-00001.h5", "residual", 2),
        ("block-momentum", "state.h5", "velocity", 3),
    ],
)
def test_nothing_is_read_from_other_files(
    refused: Refused, how: str, name: str, file: str, vector: str, ranks: int
) -> None:
    """Not as parameters, a worker's own vectors or residuals, by the same ranks or others."""
    reason = "lie in other files" if how in ("external storage", "virtual") else "a link into another file"
    refused(name, file, lambda opened: elsewhere(opened, vector, how), reason, ranks)


def test_buffers_of_a_module_are_not_read_from_other_files(tmp_path: Path) -> None:
    """What a model keeps beside its parameters, at any depth; nor as more than is stored."""
    path = tmp_path / "state.h5"
    with h5py.File(path, "w") as file:
        file["kept/a.mean"] = np.zeros(610)
        file["kept/inner/b"] = np.ones(3)
    assert {name: array.size for name, array in checkpoint.load_kept(tmp_path).items()} == {"a.mean": 610, "inner/b": 3}
    with h5py.File(path, "r+") as file:
        elsewhere(file, "kept/a.mean", "external storage")
    with pytest.raises(BadInput, match=r"state\.h5: the values of kept/a\.mean lie in other files"):
        checkpoint.load_kept(tmp_path)
    with h5py.File(path, "w") as file:
        file.create_dataset("kept/a", data=np.zeros(1 << 20), chunks=(1 << 20,), compression="gzip")
    with pytest.raises(BadInput, match=r"state\.h5: kept/a would take"):
        checkpoint.load_kept(tmp_path)
    with h5py.File(path, "w") as file:
        file["kept/self"] = file["kept"] if "kept" in file else file.create_group("kept")
    with pytest.raises(BadInput, match=r"state\.h5: its groups do not end"):
        checkpoint.load_kept(tmp_path)


# ---- the manifest, and what is no file


def sealed(folder: Path, **files: object) -> Path:
    """A checkpoint whose manifest names these files."""
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "files": files}))
    return folder


def entry(path: Path) -> dict[str, object]:
    described = checkpoint.files.digest(path)
    return {"bytes": described.bytes, "xxh3": described.xxh3}


def test_a_manifest_must_name_the_files(tmp_path: Path) -> None:
    """All of them, the state in any case."""
    for number, files in enumerate(({}, {"rank-00000.h5": {"bytes": 0, "xxh3": ""}})):
        sealed(tmp_path / "a" / f"00000000000{number}", **files)
    assert checkpoint.newest(tmp_path / "a")[0] is None
    assert [line.split(": ")[1] for line in checkpoint.newest(tmp_path / "a")[1]] == [
        "its manifest does not name state.h5"
    ] * 2
    folder = tmp_path / "b" / "000000000001"
    folder.mkdir(parents=True)
    (folder / "state.h5").write_bytes(b"whatever")
    write_manifest(folder)
    assert checkpoint.newest(tmp_path / "b") == (folder, [])
    (folder / "rank-00000.h5").write_bytes(b"not named")
    assert "does not name rank-00000.h5" in checkpoint.newest(tmp_path / "b")[1][0]


@pytest.mark.parametrize("manifest", ["[" * 100_000, "[]", '{"format": 1}', '{"format": 1, "files": {"state.h5": 7}}'])
def test_a_manifest_of_another_form_is_torn(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "000000000001").mkdir()
    (tmp_path / "000000000001" / MANIFEST).write_text(manifest)
    found, (line,) = checkpoint.newest(tmp_path)
    assert found is None and "torn" in line and "\n" not in line


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "model/../../secret", "linked/secret", "a\x00b", ""])
def test_a_manifest_names_no_other_files(tmp_path: Path, name: str) -> None:
    """Not even ones whose checksum it knows."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "secret").write_text("secret")
    folder = tmp_path / "run" / "000000000001"
    known = entry(tmp_path / "run" / "secret")
    sealed(folder, **{name: known, "state.h5": known})
    (folder / "model").mkdir()
    (folder / "linked").symlink_to(tmp_path / "run")
    (folder / "state.h5").write_text("secret")
    found, (line,) = checkpoint.newest(tmp_path / "run")
    assert found is None and "\x00" not in line
    assert "is not in the checkpoint" in line or "embedded null" in line, line


ENDLESS = ("zero manifest", "sparse manifest", "pipe manifest", "zero state", "pipe state", "zero document")


@pytest.mark.parametrize("how", ENDLESS)
def test_what_does_not_end_is_torn(tmp_path: Path, run_command: Callable[..., Any], how: str) -> None:
    """Devices, pipes, and files that are larger than any of ours: within a deadline, and in little memory."""
    folder = tmp_path / "run" / "checkpoints" / "000000000001"
    folder.mkdir(parents=True)
    kind, which = how.split()
    (folder / "state.h5").write_bytes(b"whatever")
    (folder / "config.toml").write_text("")
    write_manifest(folder, ["config.toml"])
    path = folder / {"manifest": MANIFEST, "state": "state.h5", "document": "config.toml"}[which]
    path.unlink()
    if kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(HUGE)
    ended = run_command(["bash", "-c", f"ulimit -v 6000000; exec {sys.executable} -m mpitrain --resume run"], 60)
    assert ended.status == 2 and ended.err.count("\n") == 1, ended
    assert "run/checkpoints: no whole checkpoint to resume from" in ended.err, ended.err


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "trace.json", "config.toml"])
@pytest.mark.parametrize("kind", ["zero", "pipe", "sparse"])
def test_a_report_on_what_does_not_end_ends(
    tmp_path: Path, run_command: Callable[..., Any], name: str, kind: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text('[algorithm]\nname = "asgd"\n')
    (run / "metrics.jsonl").write_text('{"event": "start"}\n{"event": "end"}\n')
    (run / "summary.json").write_text("{}")
    path = run / name
    path.unlink(missing_ok=True)
    if kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(HUGE)
    ended = run_command(["bash", "-c", f"ulimit -v 6000000; exec {sys.executable} -m mpitrain report run"], 60)
    assert ended.status == 2 and ended.err.count("\n") == 1 and name in ended.err, ended


def test_a_resume_appends_to_no_other_file(
    runs: dict[str, Path], simulated: Callable[..., Any], tmp_path: Path
) -> None:
    """A link in the place of metrics.jsonl, which a stranger's folder may have."""
    keys = [word for key in ("algorithm.name=msgd", *KEYS) for word in ("--set", key)]
    assert simulated(1, *keys, "--set", "training.epochs=1", "--out", "run").status == 0
    victim, records = tmp_path / "victim", tmp_path / "run" / "metrics.jsonl"
    records.rename(victim)
    before = victim.read_bytes()
    records.symlink_to(victim)
    ended = simulated(1, "--resume", "run", "--set", "training.epochs=2")
    assert ended.status == 2 and ended.err == "mpitrain: run/metrics.jsonl: is a link to another file\n"
    assert victim.read_bytes() == before
    records.unlink()
    os.mkfifo(records)
    ended = simulated(1, "--resume", "run", "--set", "training.epochs=2")
    assert ended.status == 2 and ended.err == "mpitrain: run/metrics.jsonl: not a regular file\n"


# ---- whatever else

LAYOUT = Layout([Parameter("w", (3, 4), ("constant", 0.0))])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
WRITTEN = {"index": 7, "began": 0, "trained": 36, "seconds": 1.0, "position": 40, "samples": 100, "losses": [[4, 1.0]]}
WRITTEN |= {"rate": [0.0, 0, 1.0, 0, 0]}
OWN = {"t": 7, "turns": 1, "began": 0, "open": False, "rest": [[0, 3, 5, 4]], "stock": []}
OWN |= {"falls": 0, "untold": [0, 0.0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint")


def written(path: Path, told: dict[str, Any], **vectors: np.ndarray) -> None:
    """A file of a checkpoint."""
    with h5py.File(path, "w") as file:
        file.attrs["layout"], file.attrs["numbers"] = checkpoint.files.describe(LAYOUT), json.dumps(told)
        for name, vector in {"theta": np.zeros(12), "ranges": np.zeros((0, 4), np.int64), **vectors}.items():
            file.create_dataset(name, data=vector)


@given(key=st.sampled_from(sorted(WRITTEN)), value=JSON)
def test_any_number_is_taken_up_or_refused(folder: Path, key: str, value: Any) -> None:
    """And what is taken up can be counted with."""
    written(folder / "state.h5", {**WRITTEN, key: value})
    state = State(np.zeros(12), Queue(100, 1000))
    try:
        checkpoint.load_state(folder, state, LAYOUT)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert min(state.index, state.trained, state.seconds, state.queue.position) >= 0
        state.losses.add(4, 1.0)
        state.losses.mean(10)
        assert state.queue.next(4) is not None or state.queue.position >= 1000


@given(key=st.sampled_from(sorted(OWN)), value=JSON)
def test_any_number_of_a_worker_is_taken_up_or_refused(folder: Path, key: str, value: Any) -> None:
    written(folder / "rank-00000.h5", {**OWN, key: value})
    state = State(np.zeros(12), Queue(100, 1000))
    try:
        checkpoint.load_local(folder, 0, state, LAYOUT)
        past = checked(state.local_numbers, WorkerPast)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert past.t >= 0 and all(count > 0 <= start for _, start, count, _ in past.rest)


@given(
    shape=st.lists(st.integers(0, 13), max_size=3),
    dtype=st.sampled_from(["f2", "f4", "f8", "i4", "u8", "c8", "S3", "?"]),
    name=st.sampled_from(["theta", "ranges"]),
)
def test_any_array_is_taken_up_or_refused(folder: Path, shape: list[int], dtype: str, name: str) -> None:
    written(folder / "state.h5", WRITTEN, **{name: np.zeros(shape, dtype)})
    state = State(np.ones(12), Queue(100, 1000))
    try:
        checkpoint.load_state(folder, state, LAYOUT)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert not state.theta.any()
