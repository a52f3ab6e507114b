"""Corpora of tokens: windows, text that is prepared, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpitrain.__main__ import main
from mpitrain.data.corpus import Corpus
from mpitrain.data.digits import embedded
from mpitrain.data.shards import document_arrays, folder_parts, shard_name, write_shard
from mpitrain.data.writer import ShardWriter
from mpitrain.errors import BadInput

from .alone import read_shard


def write(folder: Path, shards: list[list[list[int]]], dtype: type = np.uint16) -> None:
    """A training part of these shards of documents of tokens below 300; a token stands for three bytes."""
    folder.mkdir(exist_ok=True)
    for number, documents in enumerate(shards):
        arrays = document_arrays([np.array(own, dtype) for own in documents], [3 * len(own) for own in documents])
        write_shard(folder / shard_name("train", number, len(shards)), "tokens", arrays, {"classes": 300})


TOKENS = st.lists(st.lists(st.lists(st.integers(0, 299), max_size=9), min_size=1, max_size=4), min_size=1, max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(TOKENS.filter(lambda shards: all(any(own) for own in shards)), st.integers(1, 7), st.data(), st.booleans())
def test_windows(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[list[int]]], window: int, data: Any, wide: bool
) -> None:
    """They follow one another, across documents and shards, and each target is the token after its input; in memory,
    from disk, and partly the one and partly the other, in any order."""
    folder = tmp_path_factory.mktemp("tokens")
    write(folder, shards, np.uint32 if wide else np.uint16)
    stream = [token for documents in shards for own in documents for token in own]
    if len(stream) <= window:
        with pytest.raises(BadInput, match=rf"data\.window = {window}: part train .* has {len(stream)} tokens"):
            Corpus(folder, "train", window=window)
        return
    samples = (len(stream) - 1) // window
    order = np.array(data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=9)))
    every = len(stream) * (4 if wide else 2)
    for limit in (1e9, 0, every - 1):
        corpus = Corpus(folder, "train", window=window, memory_limit=limit, hold=False)
        corpus.hold(partly=True)
        assert (corpus.samples, corpus.shape, corpus.classes) == (samples, (window,), 300)
        assert corpus.in_memory == (limit > every) and corpus.form.bytes == pytest.approx(3)
        batch = corpus.gather(order, corpus.form.room(len(order), np.float32))
        for place, sample in enumerate(order):
            start = int(sample) * window
            assert batch.inputs[place].tolist() == stream[start : start + window]
            assert batch.targets[place].tolist() == stream[start + 1 : start + window + 1]


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({}, "data.window: .* holds tokens; say how many"),
        ({"window": 5, "context": [1]}, r"data.context = \[1, 1\]: tokens have no frames"),
        ({"window": 5, "normalise": "speaker"}, "data.normalise = speaker: tokens are not normalised"),
    ],
)
def test_what_does_not_fit_tokens(tmp_path: Path, how: dict[str, Any], line: str) -> None:
    write(tmp_path, [[list(range(20))]])
    with pytest.raises(BadInput, match=line):
        Corpus(tmp_path, "train", **how)
    with pytest.raises(BadInput, match=r"data\.window = 5: for tokens; .* holds images"):
        Corpus(embedded(), "train", window=5)


def test_wrong_shards(tmp_path: Path) -> None:
    path = tmp_path / shard_name("train", 0, 1)
    tokens = np.arange(10, dtype=np.uint16)
    for arrays, classes, line in (
        ({"tokens": tokens, "documents": np.array([0, 10])}, 9, "a token 9, but there are 9 classes"),
        ({"tokens": tokens, "documents": np.array([0, 9])}, 10, "documents must rise from 0 to 10 tokens"),
        ({"tokens": tokens, "documents": np.array([0, 8, 4, 10])}, 10, "documents must rise"),
        (
            {"tokens": tokens.astype(np.int32), "documents": np.array([0, 10])},
            10,
            "tokens is int32 of 1 axes, not uint16 or uint32",
        ),
        ({"tokens": tokens[:0], "documents": np.array([0, 0])}, 10, "no samples"),
        ({**document_arrays([tokens], [-1])}, 10, "bytes must tell the bytes of each of 1 documents"),
    ):
        with pytest.raises(BadInput, match=line):
            write_shard(path, "tokens", arrays, {"classes": classes})
    assert not path.exists()


def test_a_script_writes_documents(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "train", "tokens", {"classes": 50}, limit=16)
    for length in (3, 6, 1, 20):
        writer.add(np.full(length, length, np.uint16))
    with pytest.raises(BadInput, match="tokens have no targets"):
        writer.add(np.zeros(3, np.uint16), np.zeros(3, np.int32))
    assert writer.finish() == 3
    found = [read_shard(path).arrays["documents"].tolist() for path in folder_parts(tmp_path)["train"]]
    assert found == [[0, 3], [0, 6, 7], [0, 20]]
    assert Corpus(tmp_path, "train", window=29).samples == 1
    with pytest.raises(BadInput, match="images have targets"):
        ShardWriter(tmp_path, "dev", "images", {"classes": 2}).add(np.zeros((1, 2, 2, 1), np.uint8))


def stored(folder: Path) -> dict[str, bytes]:
    """The text of each part, from shards of bytes."""
    parts = folder_parts(folder)
    return {
        part: b"".join(read_shard(path).arrays["tokens"].astype(np.uint8).tobytes() for path in paths)
        for part, paths in parts.items()
    }


def test_one_text_is_divided_at_the_ends_of_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"line {n} ä\n" for n in range(200_000)).encode()
    (tmp_path / "a.txt").write_bytes(text)
    assert main(["prepare", "text", str(tmp_path / "a.txt"), str(tmp_path / "out")]) == 0, capsys.readouterr().err
    found = stored(tmp_path / "out")
    assert found["train"] + found["dev"] + found["test"] == text
    assert all(part.endswith(b"\n") for part in found.values())
    assert len(found["dev"]) == pytest.approx(len(text) / 20, abs=20) == pytest.approx(len(found["test"]), abs=40)
    assert len(folder_parts(tmp_path / "out")["train"]) > 1 and main(["check", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("between", ["", " ", "\u3000"])
def test_texts_without_line_ends_are_cut_between_characters(
    tmp_path: Path, between: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with white space before it, so that words stay whole and the tokens are those of the whole text."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers (the extra mpitrain[text])")
    words = tokenizers.Tokenizer(tokenizers.models.BPE({"語": 0, "é": 1, "😀": 2, "\u3000": 3, " ": 4, "?": 5}, []))
    words.model.unk_token = "?"
    words.save(str(tmp_path / "words.json"))
    text = between.join(["語é😀"] * 150_000)
    (tmp_path / "a.txt").write_text(text)
    how = ["--tokenizer", str(tmp_path / "words.json"), str(tmp_path / "a.txt")]
    assert main(["prepare", "text", *how, str(tmp_path / "out")]) == 0, capsys.readouterr().err
    parts = folder_parts(tmp_path / "out")
    found = [read_shard(path).arrays["tokens"] for part in ("train", "dev", "test") for path in parts[part]]
    assert len(found) > 3 and np.concatenate(found).tolist() == words.encode(text).ids
    assert between != " " or all(piece[0] == 4 for piece in found[1:])


def test_whole_texts_are_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder's own files, each in one part; the same command finds all done."""
    folder = tmp_path / "texts" / "deep"
    folder.mkdir(parents=True)
    texts = [f"text {n}\n".encode() * (n % 7 + 1) for n in range(40)]
    for number, text in enumerate(texts):
        (folder / f"{number}.py").write_bytes(text)
    (folder / "other.md").write_bytes(b"not wanted")
    (folder / "empty.py").touch()
    command = ["prepare", "text", "--ending", ".py", "--dev", "0.2", str(tmp_path / "texts"), str(tmp_path / "out")]
    assert main(command) == 0 and main(command) == 0
    assert "left out 1 empty file\n" in capsys.readouterr().out
    assert main([*command[:-1], str(folder), str(tmp_path / "twice")]) == 0  # each file once, and one of them empty
    assert "left out 1 empty file\n" in capsys.readouterr().out
    found = stored(tmp_path / "out")
    for text in texts:
        assert sum(text in part for part in found.values()) == 1
    whole = sum(map(len, texts))
    assert sum(map(len, found.values())) == whole and len(found["dev"]) == pytest.approx(0.2 * whole, abs=60)
    assert main(["prepare", "text", "--seed", "2", *command[2:]]) == 2
    assert "shards of another corpus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--dev", "0.6", "--test", "0.5", "few.txt"], "--dev 0.6: expected a share of the bytes below 1"),
        (["missing.txt"], "missing.txt"),
        (["empty.txt"], "prepare text: no file of text"),
        (["few.txt"], "prepare text: 3 bytes in 1 document leave none for part dev; give a larger --dev, or 0"),
        (["--tokenizer", "missing.json", "few.txt"], "--tokenizer missing.json: no such file"),
    ],
)
def test_wrong_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.txt").write_text("abc")
    Path("empty.txt").touch()
    assert main(["prepare", "text", *words, "out"]) == 2
    told = capsys.readouterr().err
    assert line in told and told.count("\n") == 1


def test_a_tokenizer_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Documents remain whole, whatever lengths its file asks for."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers (the extra mpitrain[text])")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2, "sat": 3}, unk_token="[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.enable_truncation(5)
    words.enable_padding(length=1000)
    words.save(str(tmp_path / "words.json"))
    (tmp_path / "a.txt").write_text("the cat sat\nthe dog sat\n" * 100)
    how = ["--tokenizer", str(tmp_path / "words.json"), "--dev", "0", str(tmp_path / "a.txt")]
    assert main(["prepare", "text", *how, str(tmp_path / "out")]) == 0, capsys.readouterr().err
    corpus = Corpus(tmp_path / "out", "train", window=6)
    batch = corpus.gather(np.array([1]), corpus.form.room(1, np.float32))
    assert batch.inputs.tolist() == [[1, 2, 3, 1, 0, 3]] and batch.targets.tolist() == [[2, 3, 1, 0, 3, 1]]
    assert (corpus.classes, corpus.form.bytes) == (4, 4.0)
    assert list(folder_parts(tmp_path / "out")) == ["train", "test"]
    (tmp_path / "a.txt").write_bytes("the cat sät\n".encode() * 100 + "sät".encode("latin1"))
    assert main(["prepare", "text", *how, str(tmp_path / "latin1")]) == 2
    assert f"{tmp_path / 'a.txt'}: not UTF-8 at byte 1,301, and" in capsys.readouterr().err
    (tmp_path / "words.json").write_text("{")
    assert main(["prepare", "text", *how, str(tmp_path / "other")]) == 2
    assert "--tokenizer" in capsys.readouterr().err


def test_other_data_than_it_was_trained_on(
    tmp_path: Path, simulated: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Networks of the built-in layers take no tokens. None can be described without a window."""
    write(tmp_path / "shards", [[list(range(200))]])
    assert main(["describe", "--set", f"data.path={tmp_path / 'shards'}"]) == 2
    assert "mpitrain: data.window: the data are tokens; say how many" in capsys.readouterr().err
    ended = simulated(2, "--set", f"data.path={tmp_path / 'shards'}", "--set", "data.window=5")
    assert ended.status == 2 and "data.window: networks of tokens are modules of PyTorch's" in ended.err
