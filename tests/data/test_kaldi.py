"""`prepare kaldi`: the same numbers out as in, CMVN by hand, parts, what is left out, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.__main__ import parser
from mpitrain.data.corpus import Corpus
from mpitrain.data.importers import plan as planning
from mpitrain.data.importers import recorded
from mpitrain.data.importers.kaldi import normalise, sums_of
from mpitrain.data.shards import set_attributes
from mpitrain.errors import BadInput

from .alone import imported, planned, read, refused

kaldiio = pytest.importorskip("kaldiio", reason="extra kaldi is not installed")

DIMS = 3


def _corpus(folder: Path, speakers: int = 4, each: int = 3, prefix: str = "", text: bool = False) -> dict[str, Any]:
    """A data folder `data` and alignments `pdf.scp`, `pdf.ark`; the features and alignment of each key."""
    rng = np.random.default_rng(speakers)
    (folder / "data").mkdir(parents=True)
    keys = [f"{prefix}s{speaker}-u{number}" for number in range(each) for speaker in range(speakers)]
    features = {key: rng.normal(2, 3, (int(rng.integers(4, 9)), DIMS)).astype(np.float32) for key in keys}
    aligned = {key: rng.integers(0, 7, len(features[key])).astype(np.int32) for key in keys}
    aligned[keys[0]][0] = 7
    kaldiio.save_ark(str(folder / "f.ark"), features, scp=str(folder / "data" / "feats.scp"), text=text)
    kaldiio.save_ark(str(folder / "pdf.ark"), aligned, scp=str(folder / "pdf.scp"), text=text)
    (folder / "data" / "utt2spk").write_text("".join(f"{key} {key.split('-')[0]}\n" for key in keys))
    return {key: (features[key], aligned[key]) for key in keys}


def _plan(folder: Path, *words: object) -> planning.CorpusPlan:
    return planned("kaldi", folder / "data", "--alignments", folder / "pdf.scp", *words)


def _by_key(part: dict[str, Any]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    starts = _starts(part)
    keys = [key.decode() for key in part["keys"]]
    spans = zip(starts, [*starts[1:], len(part["targets"])], strict=True)
    return {
        key: (part["features"][slice(*span)], part["targets"][slice(*span)])
        for key, span in zip(keys, spans, strict=True)
    }


def _starts(part: dict[str, Any]) -> list[int]:
    """Where utterances begin; the offsets of several shards stand one after the other, each from 0."""
    starts, base = [], 0
    for offset, following in zip(part["utterances"], [*part["utterances"][1:], 0], strict=True):
        if following == 0:
            base += int(offset)
        else:
            starts.append(base + int(offset))
    return starts


def _same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert set(found) == set(wanted)
    for key, (features, targets) in wanted.items():
        assert np.array_equal(found[key][0], features) and np.array_equal(found[key][1], targets), key


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_the_same_numbers_come_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bool, size: int) -> None:
    for module in (planning, recorded):
        monkeypatch.setattr(module, "SMALLEST", size)
    corpus = _corpus(tmp_path, text=text)
    part = imported(tmp_path / "out", lambda: _plan(tmp_path))["train"]
    assert (part["shards"] > 1) == (size == 1)
    _same(_by_key(part), corpus)
    assert part["classes"] == 8 and part["speakers"].tolist() == [0, 1, 2, 3] * 3
    features = np.concatenate([features for features, _ in corpus.values()]).astype(float)
    assert np.allclose(part["mean"], features.mean(0)) and np.allclose(part["standard_deviation"], features.std(0))
    opened = Corpus(tmp_path / "out", "train", context=[2], normalise="speaker")
    assert opened.keys == list(corpus) and opened.shape == (5, DIMS)


def test_shards_tell_their_cmvn_and_old_ones_are_not_made_again(tmp_path: Path) -> None:
    """The preparation is no part of what tells one import from another: shards of before that are whole stay."""
    _corpus(tmp_path)
    make = lambda: _plan(tmp_path, "--cmvn", "speaker", "--norm-vars")  # noqa: E731
    part = imported(tmp_path / "out", make)["train"]
    assert json.loads(part["preparation"]) == {"cmvn": "speaker", "norm_vars": True}
    (shard,) = (tmp_path / "out").glob("*.h5")
    set_attributes(shard, {"preparation": None})
    assert "preparation" not in imported(tmp_path / "out", make)["train"]


def test_an_archive_without_script_or_speakers(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path)
    part = imported(
        tmp_path / "out", lambda: planned("kaldi", tmp_path / "f.ark", "--alignments", tmp_path / "pdf.ark")
    )
    _same(_by_key(part["train"]), corpus)
    assert "speakers" not in part["train"]


def test_folders_and_speakers_make_parts(tmp_path: Path) -> None:
    train, dev = _corpus(tmp_path / "a", 6), _corpus(tmp_path / "b", 2, prefix="dev-")
    words = ["--dev", tmp_path / "b" / "data", "--alignments", tmp_path / "b" / "pdf.ark"]
    held_out = ["--split-off", "test=2,test-other=1"]
    make = lambda seed: _plan(tmp_path / "a", *words, *held_out, "--seed", seed)  # noqa: E731
    parts = imported(tmp_path / "out", lambda: make(1))
    assert {part: len(_by_key(found)) for part, found in parts.items()} == {
        "train": 9, "dev": 6, "test": 6, "test-other": 3
    }  # fmt: skip
    _same(_by_key(parts["dev"]), dev)
    together: dict[str, Any] = {}
    voices: dict[str, set[str]] = {}
    for part in ("train", "test", "test-other"):
        own = _by_key(parts[part])
        voices[part] = {key.split("-")[0] for key in own}
        together |= own
        assert set(parts[part]["speakers"]) == set(range(len(voices[part])))
    _same(together, train)
    assert sum(map(len, voices.values())) == 6 == len(set.union(*voices.values()))
    drawn = {tuple(sorted({each.speaker for each in make(seed).chunks["test"][0].utterances})) for seed in range(8)}
    assert len(drawn) > 1


def test_cmvn_by_hand() -> None:
    # Of 1, 3, 8: mean 4, variance ((−3)² + (−1)² + 4²) ÷ 3 = 26 ÷ 3
    features = np.array([[1], [3], [8]], np.float32)
    sums = sums_of(features)
    assert sums.tolist() == [[12, 3], [74, 0]]
    assert normalise(features, sums, False).ravel().tolist() == [-3, -1, 4]
    assert normalise(features, sums, True).ravel() == pytest.approx(np.array([-3, -1, 4]) / np.sqrt(26 / 3))
    assert np.isfinite(normalise(np.ones((2, 1)), sums_of(np.ones((2, 1))), True)).all()


@pytest.mark.parametrize("variance", [False, True])
@pytest.mark.parametrize("cmvn", ["utterance", "speaker", "scp"])
def test_cmvn_of_utterances_and_speakers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cmvn: str, variance: bool
) -> None:
    monkeypatch.setattr(recorded, "SMALLEST", 1)
    corpus = _corpus(tmp_path)
    groups: dict[str, list[np.ndarray]] = {}
    for key, (features, _) in corpus.items():
        groups.setdefault(key if cmvn == "utterance" else key.split("-")[0], []).append(features.astype(float))
    if cmvn == "scp":  # other sums than the speakers' own, so that these are not taken
        groups = {name: [own[0], own[0] + 1] for name, own in groups.items()}
        sums = {name: sums_of(np.concatenate(own)) for name, own in groups.items()}
        kaldiio.save_ark(str(tmp_path / "cmvn.ark"), sums, scp=str(tmp_path / "data" / "cmvn.scp"))
    part = imported(tmp_path / "out", lambda: _plan(tmp_path, "--cmvn", cmvn, *["--norm-vars"] * variance))["train"]
    assert part["shards"] > 1
    found = _by_key(part)
    for key, (features, _) in corpus.items():
        own = np.concatenate(groups[key if cmvn == "utterance" else key.split("-")[0]])
        wanted = (features - own.mean(0)) / (own.std(0) if variance else 1)
        assert np.allclose(found[key][0], wanted, atol=1e-5), key


def test_cmvn_scp_of_utterances_needs_no_speakers(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path, 1, 2)
    (tmp_path / "data" / "utt2spk").unlink()
    sums = {key: sums_of(features) for key, (features, _) in corpus.items()}
    kaldiio.save_ark(str(tmp_path / "cmvn.ark"), sums, scp=str(tmp_path / "data" / "cmvn.scp"))
    found = _by_key(imported(tmp_path / "out", lambda: _plan(tmp_path, "--cmvn", "scp"))["train"])
    for key, (features, _) in corpus.items():
        assert np.allclose(found[key][0], features - features.astype(float).mean(0), atol=1e-5)


def test_utterances_without_alignment_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = _corpus(tmp_path)
    lines = (tmp_path / "pdf.scp").read_text().splitlines(keepends=True)
    (tmp_path / "pdf.scp").write_text("".join([*lines[2:], lines[2].replace("s2-u0", "unheard")]))
    part = imported(tmp_path / "out", lambda: _plan(tmp_path))["train"]
    assert "2 of 12 utterances of" in (out := " ".join(capsys.readouterr().out.split()))
    assert "data have no alignment and are left out: s0-u0, s1-u0" in out
    assert "1 of 11 utterances have an alignment, no features and are left out: unheard" in out
    _same(_by_key(part), {key: corpus[key] for key in list(corpus)[2:]})


def test_lengths_may_differ_by_so_many_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = _corpus(tmp_path)
    other = {key: targets if key != "s1-u1" else targets[:-2] for key, (_, targets) in corpus.items()}
    other["s2-u1"] = np.append(other["s2-u1"], np.int32(1))
    kaldiio.save_ark(str(tmp_path / "pdf.ark"), other, scp=str(tmp_path / "pdf.scp"))
    frames = len(corpus["s1-u1"][0])
    line = f"utterance s1-u1: {frames} frames, but labels for {frames - 2}; --tolerance N cuts up to N frames"
    refused(tmp_path / "out", lambda: _plan(tmp_path), line, capsys)
    refused(tmp_path / "out", lambda: _plan(tmp_path, "--tolerance", 1), f"labels for {frames - 2}", capsys)
    found = _by_key(imported(tmp_path / "out", lambda: _plan(tmp_path, "--tolerance", 2))["train"])
    assert np.array_equal(found["s1-u1"][0], corpus["s1-u1"][0][:-2])
    assert np.array_equal(found["s2-u1"][1], corpus["s2-u1"][1])


def test_a_source_that_changed_is_imported_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = _corpus(tmp_path)
    spoilt = {key: features for key, (features, _) in corpus.items()}
    dev = _corpus(tmp_path / "dev", 1, 1, prefix="dev-")
    content = (tmp_path / "dev" / "f.ark").read_bytes()
    (tmp_path / "dev" / "f.ark").write_bytes(content[:-1])
    words = ["--dev", tmp_path / "dev" / "data", "--alignments", tmp_path / "dev" / "pdf.scp"]
    make = lambda: _plan(tmp_path, *words)  # noqa: E731
    refused(tmp_path / "out", make, "truncated", capsys)  # when the shard of train is there
    (tmp_path / "dev" / "f.ark").write_bytes(content)
    spoilt["s0-u0"] = spoilt["s0-u0"] + 1
    kaldiio.save_ark(str(tmp_path / "f.ark"), spoilt)
    parts = imported(tmp_path / "out", make)
    assert np.array_equal(_by_key(parts["train"])["s0-u0"][0], corpus["s0-u0"][0] + 1)
    _same(_by_key(parts["dev"]), dev)


def _features(folder: Path, key: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    arrays = dict(kaldiio.load_ark(str(folder / "f.ark")))
    kaldiio.save_ark(
        str(folder / "f.ark"), {k: change(array) if k == key else array for k, array in arrays.items()},
        scp=str(folder / "data" / "feats.scp"),
    )  # fmt: skip


def _nan(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[1, 2] = np.nan
    return array


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


FAULTS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "ragged": (lambda d: _features(d, "s1-u1", lambda a: a[:, :2]), "", "s1-u1: 2 features a frame, others have 3"),
    "nan": (lambda d: _features(d, "s2-u1", _nan), "", "s2-u1: features that are not finite, or beyond ±1e+30"),
    "no frames": (lambda d: _features(d, "s1-u1", lambda a: a[:0]), "--tolerance 99", "s1-u1: no frames"),
    "features truncated": (lambda d: _truncate(d / "f.ark"), "", "f.ark:"),
    "alignments truncated": (lambda d: _truncate(d / "pdf.ark"), "", "pdf.ark:"),
    "features empty": (lambda d: (d / "f.ark").write_bytes(b""), "", "f.ark:"),
    "features of another kind": (lambda d: (d / "f.ark").write_bytes(bytes(9999)), "", "not a Kaldi object"),
    "script empty": (lambda d: (d / "data" / "feats.scp").write_bytes(b""), "", "feats.scp: is empty"),
    "no script": (lambda d: (d / "data" / "feats.scp").unlink(), "", "feats.scp: No such file"),
    "no alignments": (lambda d: (d / "pdf.scp").unlink(), "", "pdf.scp: no such file or folder"),
    "others' alignments": (lambda d: (d / "pdf.scp").write_text("x x:1\n"), "", "none of its 12 utterances has an"),
    "features for alignments": (
        lambda d: (d / "pdf.scp").write_text((d / "data" / "feats.scp").read_text()), "", "a matrix (FM), not int"
    ),
    "alignments for features": (
        lambda d: (d / "data" / "feats.scp").write_text((d / "pdf.scp").read_text()), "", "integers, not a matrix"
    ),
    "too few classes": (lambda d: None, "--classes 7", "s0-u0: a label 7, but classes are numbered from 0"),
    "no speaker": (lambda d: (d / "data" / "utt2spk").write_text("a b c\n"), "", "line 1: expected an utteran"),
    "no cmvn": (lambda d: None, "--cmvn scp", "cmvn.scp: No such file"),
    "cmvn of others": (
        lambda d: (d / "data" / "cmvn.scp").write_text("x x:1\n"),
        "--cmvn scp",
        "has neither s0-u0 nor its speaker s0",
    ),
    "cmvn of another size": (
        lambda d: kaldiio.save_ark(
            str(d / "c"), {f"s{n}": np.ones((2, DIMS)) for n in range(4)}, scp=str(d / "data" / "cmvn.scp")
        ), "--cmvn scp", "not the sums of some frames of 3 features, which are 2 by 4"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, how, line = FAULTS[name]
    _corpus(tmp_path)
    spoil(tmp_path)
    refused(tmp_path / "out", lambda: _plan(tmp_path, *how.split()), line, capsys)


@pytest.mark.parametrize(
    ("held_out", "speakers", "line"),
    [("dev=4", True, "--split-off: 4 speakers of 4 would leave none"), ("dev=1", False, "who speaks s0-u0?")],
)
def test_speakers_that_cannot_be_split_off(
    tmp_path: Path, held_out: str, speakers: bool, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _corpus(tmp_path)
    if not speakers:
        (tmp_path / "data" / "utt2spk").unlink()
    refused(tmp_path / "out", lambda: _plan(tmp_path, "--split-off", held_out), line, capsys)
    refused(
        tmp_path / "out", lambda: _plan(tmp_path, "--dev", tmp_path / "data"), "s0-u0 is in train and in dev", capsys
    )


def test_speakers_that_nobody_names_have_no_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither without the file nor where it lacks an utterance."""
    _corpus(tmp_path)
    speakers = tmp_path / "data" / "utt2spk"
    speakers.write_text("\n".join(speakers.read_text().splitlines()[1:]))
    line = f"--cmvn speaker: who speaks s0-u0? {speakers} does not say"
    refused(tmp_path / "out", lambda: _plan(tmp_path, "--cmvn", "speaker"), line, capsys)
    speakers.unlink()
    refused(tmp_path / "out", lambda: _plan(tmp_path, "--cmvn", "speaker"), line, capsys)


def test_the_command_under_mpirun(launch: Callable[..., Any], tmp_path: Path) -> None:
    """One rank and two make the same shards; bad input is one line and status 2."""
    corpus = _corpus(tmp_path, 12, 40)
    words = [
        "prepare",
        "kaldi",
        "data",
        "OUT",
        "--alignments",
        "pdf.scp",
        "--split-off",
        "dev=1,test=2",
        "--cmvn",
        "speaker",
        "--jobs",
        "1",
    ]
    for ranks in (1, 2):
        ended = launch(ranks, *(str(tmp_path / f"out{ranks}") if word == "OUT" else word for word in words))
        assert ended.status == 0, ended.err
        assert ended.out.count("train ") == 1
    for path in (tmp_path / "out1").iterdir():
        assert path.read_bytes() == (tmp_path / "out2" / path.name).read_bytes()
    assert sum(len(part["keys"]) for part in read(tmp_path / "out2").values()) == len(corpus)
    _truncate(tmp_path / "f.ark")
    ended = launch(2, *(str(tmp_path / "bad") if word == "OUT" else word for word in words))
    assert ended.status == 2 and ended.err.count("mpitrain: ") == 1 and "Traceback" not in ended.err, ended.err
    assert "f.ark:" in ended.err and "truncated" in ended.err and not list((tmp_path / "bad").glob("[!.]*"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--norm-vars", "--norm-vars: goes with --cmvn"),
        ("--split-off dev", "--split-off dev: expected SPLIT=N"),
        ("--split-off dev=0", "--split-off dev=0: expected SPLIT=N"),
        ("--dev x --split-off dev=1", "each split only once"),
        ("--split-off else=1", "else: a part is called train, dev, test or test-NAME"),
        ("--tolerance -1", "--tolerance -1: at least 0"),
        ("--classes 0", "--classes 0: at least 1"),
        ("--test x --test y", "--test y: test is given twice"),
        ("--test a/b=x", "test-a/b: a part is called"),
        ("--dev none", "none: no such file or folder"),
    ],
)
def test_options_that_cannot_be_meant(tmp_path: Path, words: str, line: str) -> None:
    _corpus(tmp_path)
    command = ["prepare", "kaldi", str(tmp_path / "data"), "out", "--alignments", str(tmp_path / "pdf.scp")]
    options = parser().parse_args([*command, *words.split()])
    with pytest.raises(BadInput) as caught:
        options.planning(options)
    assert line in str(caught.value)
