"""`prepare wav`: features of what the files hold, labels by frames and segments, what is refused."""

import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpitrain.__main__ import parser
from mpitrain.data.importers import features, recorded
from mpitrain.data.importers.features import about, frame_centres, log_mel, read_samples, with_deltas
from mpitrain.data.importers.labels import classes_of, read_frames, read_segments
from mpitrain.errors import BadInput

from .alone import imported, planned, refused

soundfile = pytest.importorskip("soundfile", reason="extra speech is not installed")
pytest.importorskip("kaldi_native_fbank", reason="extra speech is not installed")

RATE = 8000


def _signal(seed: int, count: int = 1600) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9000, 9000, count, np.int16)


def _write(path: Path, samples: np.ndarray, rate: int = RATE, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())


def _corpus(folder: Path) -> dict[str, np.ndarray]:
    """Recordings in `audio`, of 18 frames each (1600 samples; windows of 200 every 80), and `frames.txt`."""
    signals = {f"s{speaker}-u{number}": _signal(3 * speaker + number) for speaker in range(3) for number in range(2)}
    for number, (key, signal) in enumerate(signals.items()):
        if number % 2:
            (folder / "audio" / "more").mkdir(parents=True, exist_ok=True)
            soundfile.write(folder / "audio" / "more" / f"{key}.flac", signal, RATE)
        else:
            _write(folder / "audio" / f"{key}.WAV", signal)
    (folder / "frames.txt").write_text("".join(f"{key}{' 3 0 5' * 6}\n" for key in signals))
    (folder / "audio" / "utt2spk").write_text("".join(f"{key} {key[:2]}\n" for key in signals))
    (folder / "audio" / "notes.txt").write_text("not a recording")
    return signals


def _frames(folder: Path, *words: object) -> Any:
    return planned("wav", folder / "audio", "--frames", folder / "frames.txt", *words)


def _segments(folder: Path, *words: object) -> Any:
    return planned("wav", folder / "audio", "--segments", folder / "labels", *words)


@pytest.mark.parametrize("deltas", [False, True])
def test_features_are_those_of_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deltas: bool) -> None:
    monkeypatch.setattr(recorded, "SMALLEST", 1)
    signals = _corpus(tmp_path)
    part = imported(tmp_path / "out", lambda: _frames(tmp_path, "--bins", 10, *["--deltas"] * deltas))["train"]
    assert part["shards"] > 1 and part["features"].shape == (6 * 18, 30 if deltas else 10)
    keys = [key.decode() for key in part["keys"]]
    assert sorted(keys) == sorted(signals)
    for number, key in enumerate(keys):
        wanted = log_mel(signals[key], RATE, 10)
        found = part["features"][18 * number : 18 * number + 18]
        assert np.array_equal(found, with_deltas(wanted) if deltas else wanted), key
    assert part["targets"].tolist() == [3, 0, 5] * 36 and part["classes"] == 6 and "class_names" not in part
    assert part["speakers"].tolist() == [int(key[1]) for key in keys]
    assert np.allclose(part["mean"], part["features"].astype(float).mean(0))
    how = json.loads(part["preparation"])
    assert (how["bins"], how["deltas"], how["sample_rate"], how["cmvn"]) == (10, deltas, RATE, "none")
    assert (how["features"], how["window"], how["shift"]) == ("log-mel", 0.025, 0.01)


def test_a_long_mp3_is_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = np.arange(5 * RATE) / RATE
    tones, noise = np.sin(400 * times) / 3, _signal(0, len(times)) / 1e5 * (np.sin(9 * times) > 0)
    soundfile.write(tmp_path / "u.mp3", tones + noise, RATE)
    whole = read_samples(str(tmp_path / "u.mp3"))
    monkeypatch.setattr(features, "BLOCK", 4096)
    assert np.abs(read_samples(str(tmp_path / "u.mp3")) - whole).max() < 0.1 < whole.std()


@pytest.mark.parametrize(("mode", "tags"), [("CONSTANT", 0), ("VARIABLE", 0), ("VARIABLE", 500)])
def test_an_mp3_that_does_not_tell_its_length(tmp_path: Path, mode: str, tags: int) -> None:
    pytest.importorskip("soundfile", minversion="0.13", reason="older ones have no bitrate_mode")
    path, rate = tmp_path / "u.mp3", 44100
    sound = _signal(0, 3 * rate) / 32768 * np.repeat([1, 0.01, 0.01], rate)
    soundfile.write(path, sound, rate, bitrate_mode=mode, compression_level=0.5)
    content = path.read_bytes()
    assert about(str(path)) == (rate, len(sound))
    begins = content.index(content[:2], 4)  # the first frame holds no sound, but tells the length
    path.write_bytes(b"ID3\x03\0\0\0\0" + bytes([tags >> 7, tags % 128]) + bytes(tags) + content[begins:])
    if mode == "VARIABLE":
        with pytest.raises(BadInput, match=r"u\.mp3: an MP3 of varying bit rate that does not tell its length"):
            about(str(path))
    else:
        assert about(str(path))[0] == rate and len(read_samples(str(path))) >= len(sound)


@pytest.mark.parametrize("between", [b"", b"ID3\x04\0\0\0\0\0\x05title"])
def test_joined_mp3s(tmp_path: Path, between: bytes) -> None:
    path = tmp_path / "u.mp3"
    soundfile.write(path, _signal(0, RATE) / 32768, RATE)
    content = path.read_bytes()
    path.write_bytes(content + b"TAG" + bytes(125))
    assert about(str(path)) == (RATE, RATE)
    path.write_bytes(content + between + content)
    with pytest.raises(BadInput, match=r"u\.mp3: several MP3s, of which the first tells only its own length"):
        about(str(path))


@pytest.mark.parametrize("coding", ["IMA_ADPCM", "MS_ADPCM", "GSM610"])
def test_bytes_a_second_are_no_length(tmp_path: Path, coding: str) -> None:
    path = tmp_path / "u.wav"
    soundfile.write(path, _signal(0), RATE, subtype=coding)
    intact, content = read_samples(str(path)), bytearray(path.read_bytes())
    content[28:32] = (16000).to_bytes(4, "little")  # as ffmpeg and sox write, who round or do not compute it
    path.write_bytes(content)
    assert about(str(path)) == (RATE, len(intact)) and np.array_equal(read_samples(str(path)), intact)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000])
def test_every_frame_has_a_middle(rate: int) -> None:
    for count in (0, rate // 50, rate // 40, rate // 40 + 1, rate // 7, rate // 3 + 1):
        assert len(log_mel(np.ones(count), rate, 5)) == len(frame_centres(count, rate))


@pytest.mark.parametrize("form", ["segments", "ctm"])
def test_a_frame_has_the_label_of_its_middle(tmp_path: Path, form: str) -> None:
    # Frame t has its middle at 100 + 80·t samples, 0.0125 + 0.01·t s: 0.0125, 0.0225, … 0.1825.
    _write(tmp_path / "audio" / "u.wav", _signal(0))
    lines = {
        "segments": "u 0.1 0.15 b\nu 0.0 0.0325 sil\nu 0.0325 0.1 a\nu 0.16 0.1825 b\n",
        "ctm": ";; by hand\nu 1 0.1 0.05 b 0.97\nu 1 0.0 0.0325 sil\nu 1 0.0325 0.0675 a\nu 1 0.16 0.0225 b\n",
    }[form]
    (tmp_path / "labels").write_text(lines)
    part = imported(tmp_path / "out", lambda: _segments(tmp_path, "--background", "sil"))["train"]
    assert part["class_names"] == "a b sil" and part["classes"] == 3
    # sil: 0.0125, 0.0225; a: 0.0325 … 0.0925; b: 0.1025 … 0.1425; gap: 0.1525; b: 0.1625, 0.1725; gap: 0.1825
    assert part["targets"].tolist() == [2] * 2 + [0] * 7 + [1] * 5 + [2] + [1] * 2 + [2]
    with pytest.raises(BadInput, match=r"u.wav: by .*labels: no segment holds 0.1525 s; --background LABEL fills gaps"):
        (made := _segments(tmp_path)).make(made.chunks["train"][0])
    part = imported(tmp_path / "other", lambda: _segments(tmp_path, "--background", "noise"))["train"]
    assert part["class_names"] == "a b noise sil" and part["targets"][14] == 2


def test_names_of_folders_tell_recordings_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("dr1/sa1", "dr2/sa1")):
        _write(tmp_path / "audio" / f"{name}.wav", _signal(number))
    (tmp_path / "frames.txt").write_text(f"sa1{' x' * 18}\n")
    refused(tmp_path / "out", lambda: _frames(tmp_path), "is called sa1, as is ", capsys)
    (tmp_path / "frames.txt").write_text(f"dr2/sa1{' x' * 18}\ndr1/sa1{' y' * 18}\n")
    part = imported(tmp_path / "out", lambda: _frames(tmp_path))["train"]
    assert [key.decode() for key in part["keys"]] == ["dr1/sa1", "dr2/sa1"]
    assert part["targets"].tolist() == [1] * 18 + [0] * 18 and part["class_names"] == "x y"
    for number, name in enumerate(("dr1/sa2", "dr2/sa2")):
        _write(tmp_path / "audio" / f"{name}.wav", _signal(number))
    part = imported(tmp_path / "more", lambda: _frames(tmp_path))["train"]
    assert [key.decode() for key in part["keys"]] == ["dr1/sa1", "dr2/sa1"]
    assert "have no labels and are left out: dr1/sa2, dr2/sa2" in " ".join(capsys.readouterr().out.split())


def test_links_to_folders_and_to_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _corpus(tmp_path)
    (tmp_path / "audio" / "more").rename(tmp_path / "far")
    (tmp_path / "audio" / "linked").symlink_to("../far")
    assert len(imported(tmp_path / "out", lambda: _frames(tmp_path))["train"]["keys"]) == 6
    (tmp_path / "audio" / "s2-u0.WAV").unlink()
    (tmp_path / "audio" / "s2-u0.WAV").symlink_to("nowhere")
    refused(tmp_path / "other", lambda: _frames(tmp_path), "audio/s2-u0.WAV: No such file", capsys)


def test_a_list_and_speakers_make_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signals = _corpus(tmp_path)
    (tmp_path / "utt2spk").write_text((tmp_path / "audio" / "utt2spk").read_text())
    names = {path.stem: path for path in (tmp_path / "audio").rglob("s*")}
    (tmp_path / "wav.scp").write_text("".join(f"{key} {names[key]}\n" for key in signals) + "unlabelled /x.wav\n")
    with (tmp_path / "frames.txt").open("a") as labels:
        labels.write("unrecorded 0\n")
    parts = imported(
        tmp_path / "out",
        lambda: planned(
            "wav", tmp_path / "wav.scp", "--frames", tmp_path / "frames.txt", "--split-off", "dev=1,test=1"
        ),
    )
    assert "1 of 7 utterances of" in (out := " ".join(capsys.readouterr().out.split()))
    assert "have no labels and are left out: unlabelled" in out
    assert f"1 of 7 utterances of {tmp_path}/frames.txt have no recording and are left out: unrecorded" in out
    voices = [{key[:2] for key in part["keys"]} for part in parts.values()]
    assert list(parts) == ["train", "dev", "test"] and [len(part["keys"]) for part in parts.values()] == [2, 2, 2]
    assert len(set.union(*voices)) == 3


def test_speakers_that_are_told_of_some_or_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _corpus(tmp_path)
    table = tmp_path / "audio" / "utt2spk"
    table.write_text(table.read_text().replace("s1-u0 ", "S1-u0 "))
    assert "speakers" not in imported(tmp_path / "out", lambda: _frames(tmp_path))["train"]
    said = f"{table} does not say who speaks 1 of 6 utterances, such as s1-u0: no speakers are stored"
    assert said in " ".join(capsys.readouterr().out.split())
    table.write_text("s0-u0 s0\ns0-u0 s0\ns0-u0 s1\n")
    refused(tmp_path / "other", lambda: _frames(tmp_path), "utt2spk, line 3: s0-u0 is there twice", capsys)


def test_a_mark_of_byte_order_is_no_part_of_a_key(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "labels").write_text("u 0 1 a\n", encoding=encoding)
        assert list(read_segments(tmp_path / "labels", {})) == ["u"]


@pytest.mark.parametrize("part", [":42", "[0:99]", ":42[0:99]"])
def test_a_list_of_parts_of_files_is_refused(tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    _corpus(tmp_path)
    (tmp_path / "wav.scp").write_text(f"s0-u0 {tmp_path}/audio/s0-u0.WAV{part}\n")
    make = lambda: planned("wav", tmp_path / "wav.scp", "--frames", tmp_path / "frames.txt")  # noqa: E731
    refused(tmp_path / "out", make, "wav.scp: s0-u0 is a part of a file; a list of recordings names whole ones", capsys)


def _cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def _patch(path: Path, place: int, piece: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:place] + piece + content[place + len(piece) :])


FAULTS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "one label less": (
        lambda d: (d / "frames.txt").write_text((d / "frames.txt").read_text().replace("5\n", "\n", 1)), "",
        "s0-u0.WAV: b"
    ),
    "zero-byte": (lambda d: (d / "audio/s0-u0.WAV").write_bytes(b""), "", "s0-u0.WAV: not a recording"),
    "not audio": (lambda d: (d / "audio/s0-u0.WAV").write_bytes(b"GIF89a" * 99), "", "s0-u0.WAV: not a recording"),
    "wav truncated": (lambda d: _cut(d / "audio/s0-u0.WAV", 0.7), "", "s0-u0.WAV: truncated"),
    "wav of length 0": (
        lambda d: _patch(d / "audio/s0-u0.WAV", 40, b"\0" * 4), "", "0 samples by its head, in a file of 3,244"
    ),
    "wav head alone": (lambda d: _cut(d / "audio/s0-u0.WAV", 0.004), "", "s0-u0.WAV: not a recording"),
    "flac truncated": (lambda d: _cut(d / "audio/more/s0-u1.flac", 0.7), "", "s0-u1.flac: "),
    "another rate": (
        lambda d: _write(d / "audio/s1-u0.WAV", _signal(0), 16000), "", "s1-u0.WAV: 16000 samples a second"
    ),
    "stereo": (lambda d: _write(d / "audio/s0-u0.WAV", _signal(0), channels=2), "", "2 channels, expected one"),
    "too short": (
        lambda d: _write(d / "audio/s0-u0.WAV", _signal(0, 99)),
        "--tolerance 99",
        "s0-u0.WAV: by ",
    ),
    "not finite": (
        lambda d: soundfile.write(
            d / "audio/s0-u0.WAV", np.full(1600, np.nan, np.float32), RATE, subtype="FLOAT", format="WAV"
        ), "", "s0-u0.WAV: samples that are not finite numbers"
    ),
    "too few classes": (lambda d: None, "--classes 5", "a label 5, but classes are numbered from 0 to 4"),
    "no labels": (lambda d: (d / "frames.txt").unlink(), "", "frames.txt: No such file"),
    "empty labels": (lambda d: (d / "frames.txt").write_text("\n"), "", "frames.txt: is empty"),
    "labels of others": (lambda d: (d / "frames.txt").write_text("x 1\n"), "", "none of its 6 recordings is in"),
    "no recordings": (
        lambda d: [path.rename(f"{path}.m4a") for path in (d / "audio").rglob("s*")], "",
        "audio: holds no recordings (.aif, .aiff, .au, .flac,"
    ),
    "labels twice": (lambda d: (d / "frames.txt").write_text("x 1\nx 2\n"), "", "line 2: x is there twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, how, line = FAULTS[name]
    _corpus(tmp_path)
    spoil(tmp_path)
    refused(tmp_path / "out", lambda: _frames(tmp_path, *how.split()), line, capsys)


@pytest.mark.parametrize(("riff", "data"), [(3244, 3200), (0x7FFFF024, 0x7FFFF000), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_lengths_that_a_head_tells_wrongly(tmp_path: Path, riff: int, data: int) -> None:
    """The length of a whole file counts the first eight bytes, too; SoX and ffmpeg write to a pipe."""
    _write(path := tmp_path / "u.wav", _signal(0))
    _patch(path, 4, riff.to_bytes(4, "little"))
    _patch(path, 40, data.to_bytes(4, "little"))
    assert about(str(path)) == (RATE, 1600)
    assert (read_samples(str(path)) == _signal(0)).all()


def test_a_flac_that_was_written_to_a_pipe(tmp_path: Path) -> None:
    soundfile.write(path := tmp_path / "u.flac", _signal(0), RATE)
    _patch(path, 22, b"\0" * 4)  # the lower 32 bits of the number of samples
    with pytest.raises(BadInput, match="does not tell how many samples follow"):
        about(str(path))


@pytest.mark.parametrize(
    ("ending", "form", "share", "said"),
    [
        ("sph", "NIST", 0.7, "truncated: 1,600 samples by its head, there are "),
        ("aiff", "AIFF", 0.7, "truncated: "),
        ("au", "AU", 0.7, "truncated: 3,200 bytes by its head, there are "),
        ("wav", "RF64", 0.7, "truncated: "),
        ("ogg", "OGG", 0.95, "damaged: "),
    ],
)
def test_truncated_recordings_are_refused(
    tmp_path: Path, ending: str, form: str, share: float, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audio" / f"u.{ending}"
    path.parent.mkdir()
    soundfile.write(path, _signal(0), RATE, format=form)
    assert about(str(path)) == (RATE, 1600)
    _cut(path, share)
    if ending != "sph":
        with pytest.raises(BadInput, match=said):  # also where that happens after the import was planned
            read_samples(str(path))
    (tmp_path / "labels").write_text("u 0 1 0\n")
    refused(tmp_path / "out", lambda: _segments(tmp_path), f"{path}: {said}", capsys)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("u 0 1\n", "line 1: expected a key, start, end and label"),
        ("u a b c\n", "line 1: a and b are not times in seconds"),
        ("u 0 1 a\nu 2 2 a\n", "line 2: a segment from 2 to 2 s"),
        ("u -1 1 a\n", "a segment from -1 to 1 s"),
        ("u nan 1 a\n", "a segment from nan to 1 s"),
        ("u 0 inf a\n", "a segment from 0 to inf s"),
        ("u 0 1 a\nu 0.98 2 a\n", "segments of u overlap at 0.98 s"),
    ],
)
def test_segments_that_cannot_be(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "labels").write_text(lines)
    with pytest.raises(BadInput) as caught:
        read_segments(tmp_path / "labels", {})
    assert said in str(caught.value) and str(tmp_path / "labels") in str(caught.value)


def test_segments_whose_rounded_times_overlap(tmp_path: Path) -> None:
    # True times: 0.109, 0.4449, 0.59; start and duration of each are rounded to hundredths.
    (tmp_path / "labels").write_text("u 1 0.11 0.34 0\nu 1 0.44 0.15 1\n")
    found = read_segments(tmp_path / "labels", {})["u"]
    assert found.at(np.array([0.435, 0.445, 0.455]), None, "u").tolist() == [0, 1, 1]


def test_segments_of_a_longer_recording_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path / "audio" / "u.wav", _signal(0))
    (tmp_path / "labels").write_text("u 0 1 a\nu 1 2 a\n")
    refused(tmp_path / "out", lambda: _segments(tmp_path), "a segment begins at 1 s, the sound ends at 0.1", capsys)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    content=st.one_of(
        st.binary(max_size=40),
        st.lists(
            st.lists(st.sampled_from(["u", "v", "0", "0.1", "1e9", "nan", "-1", "١", "a\x85b", "\ufeff"]), max_size=6)
        ).map(lambda lines: "\n".join(map(" ".join, lines)).encode()),
    )
)
def test_any_label_file_is_refused_or_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "labels"
    path.write_bytes(content)
    for read in (read_frames, read_segments):
        numbers: dict[str, int] = {}
        try:
            found = read(path, numbers)
        except BadInput as error:
            assert str(path) in str(error) and "\n" not in str(error)
            continue
        classes, _ = classes_of(list(numbers))
        for labels in found.values():
            assert (classes[labels.targets] >= 0).all()
            if labels.starts is not None:
                labels.at(np.array([0.0]), 0, "") if labels.starts[-1] < 0.1 else None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--frames x --background a", "--background: goes with --segments"),
        ("--frames x --bins 2", "--bins 2: at least 3"),
        ("--segments none", "none: No such file or directory"),
    ],
)
def test_options_that_cannot_be_meant(tmp_path: Path, words: str, line: str) -> None:
    options = parser().parse_args(["prepare", "wav", str(tmp_path), "out", *words.split()])
    with pytest.raises(BadInput) as caught:
        options.planning(options)
    assert line in str(caught.value)


def test_the_command_under_mpirun(launch: Callable[..., Any], tmp_path: Path) -> None:
    _corpus(tmp_path)
    words = ["prepare", "wav", "audio", "out", "--frames", "frames.txt", "--split-off", "dev=1", "--jobs", "1"]
    ended = launch(2, *words)
    assert ended.status == 0 and ended.out.count("train ") == 1, ended.err
    _write(tmp_path / "audio" / "s0-u0.WAV", _signal(0, 3200))
    words[3] = "bad"
    ended = launch(2, *words)
    assert ended.status == 2 and ended.err.count("mpitrain: ") == 1 and "Traceback" not in ended.err, ended.err
    assert "s0-u0.WAV: by frames.txt: 38 frames, but labels for 18; --tolerance N cuts up to N frames" in ended.err
    assert not list((tmp_path / "bad").glob("[!.]*"))
