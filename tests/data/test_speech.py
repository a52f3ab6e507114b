"""Speech by rule: alignment, phone states, speakers kept apart, the same shards from any number of processes."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.data.corpus import Corpus
from mpitrain.data.importers.features import frame_centres, with_deltas
from mpitrain.data.importers.sentences import LANGUAGES, sentence
from mpitrain.data.importers.utterances import PARTS, VARIANTS, PhoneState, SpeechRecipe, align, choose, speakers
from mpitrain.data.shards import folder_parts
from mpitrain.data.writer import ShardWriter
from mpitrain.errors import BadInput
from mpitrain.sampling.rng import stream

from .alone import read_shard

SMALL = 200_000  # most bytes of features in a shard, so that there are several


def test_frames_fall_into_thirds_of_their_phone() -> None:
    # "a" lasts 30 samples from 0, "b" 60 from 30
    states, segments = align(["a", "b"], np.array([0, 30]), 90, np.array([5, 15, 25, 30, 49, 50, 70, 89]))
    assert [str(states[number]) for number in segments] == [
        *("a-a.begin", "a-a.middle", "a-a.end"),
        *("a-b.begin", "a-b.begin", "a-b.middle", "a-b.end", "a-b.end"),
    ]


def test_rare_states_share_a_class() -> None:
    states = [
        PhoneState("x", "a", 0),
        PhoneState("y", "a", 0),
        PhoneState("z", "a", 0),
        PhoneState("x", "b", 0),
        PhoneState("y", "b", 0),
    ]
    counts = [5, 1, 2, 9, 3]
    # In order: xb 9, xa 5, yb 3, za 2, ya 1. Keeping three leaves za and ya, which share one class: four in all.
    of, names = choose(states, counts, 4)
    assert names == ["x-b.begin", "x-a.begin", "y-b.begin", "a.begin"]
    assert of.tolist() == [1, 3, 3, 0, 2]
    # Keeping one leaves xa, za, ya and yb: two shared classes.
    assert choose(states, counts, 3)[1] == ["x-b.begin", "a.begin", "b.begin"]
    assert choose(states, counts, 100)[0].tolist() == [1, 4, 3, 0, 2]
    with pytest.raises(BadInput, match="alone are 2"):
        choose(states, counts, 1)


def test_states_that_training_lacks_share_a_class() -> None:
    of, names = choose([PhoneState("x", "a", 0), PhoneState("y", "a", 0)], [5, 0], 100)
    assert (of.tolist(), names) == ([0, 1], ["x-a.begin", "a.begin"])


def test_deltas_of_a_ramp() -> None:
    ramp = np.arange(8, dtype=np.float32)[:, None]
    features = with_deltas(ramp)
    assert features.shape == (8, 3) and np.array_equal(features[:, :1], ramp)
    # Inside, the slope 1. At the first frame (1·(1−0) + 2·(2−0)) ÷ 10, at the second (1·2 + 2·3) ÷ 10.
    assert np.allclose(features[:, 1], [0.5, 0.8, 1, 1, 1, 1, 0.8, 0.5])
    assert np.allclose(features[2:4, 2], [(1 * (1 - 0.8) + 2 * (1 - 0.5)) / 10, 2 * (1 - 0.8) / 10])


def test_speakers_of_the_parts_are_apart() -> None:
    voices = {part: speakers(1, part) for part in PARTS}
    for part in PARTS:
        others = {voice.variant for other in PARTS if other != part for voice in voices[other]}
        assert voices[part] and not others & {voice.variant for voice in voices[part]}


def test_sentences_vary_and_repeat_with_their_stream() -> None:
    for language in LANGUAGES:
        drawn = [sentence(language, stream(1, "sentence", number)) for number in range(20)]
        assert len(set(drawn)) == 20
        assert drawn[3] == sentence(language, stream(1, "sentence", 3))
    with pytest.raises(BadInput, match="known are bn"):
        sentence("tlh", stream(1, "sentence"))


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same half minute of speech from one process and from two."""
    pytest.importorskip("espeakng_loader", reason="extra speech is not installed")
    pytest.importorskip("kaldi_native_fbank", reason="extra speech is not installed")
    from mpitrain.data.importers.speech import prepare_speech

    folders = [tmp_path_factory.mktemp("speech") / str(jobs) for jobs in (1, 2)]
    for jobs, folder in enumerate(folders, 1):
        recipe = SpeechRecipe("bn", bins=20, deltas=True, noise=15.0, seed=3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(ShardWriter.__init__.__kwdefaults__, "limit", SMALL)
            prepare_speech(folder, recipe, hours=30 / 3600, classes=200, jobs=jobs)
    return folders


@pytest.mark.parametrize("noise", [float("nan"), -5000.0, 101.0])
def test_noise_beyond_all_measure(tmp_path: Path, noise: float) -> None:
    pytest.importorskip("espeakng_loader", reason="extra speech is not installed")
    from mpitrain.data.importers.speech import prepare_speech

    with pytest.raises(BadInput, match=f"^--noise {noise:g}: expected between -100 and 100 dB$"):
        prepare_speech(tmp_path, SpeechRecipe(noise=noise), 0.003, 1998)


@pytest.mark.parametrize("hours", [0.0, float("nan"), 1e5])
def test_hours_that_cannot_be_are_refused_with_their_range(hours: float, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="extra speech is not installed")
    from mpitrain.data.importers.speech import prepare_speech

    with pytest.raises(BadInput, match=r"^--hours \S+: expected a number above 0 and below 100,000$"):
        prepare_speech(tmp_path, SpeechRecipe(), hours, 1998)


def test_the_number_of_processes_changes_nothing(speech: list[Path]) -> None:
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in speech)
    assert one.keys() == two.keys() and len(one) > 4
    assert one == two


def test_parts_classes_and_normalisation(speech: list[Path]) -> None:
    assert list(folder_parts(speech[0])) == ["train", "dev", "test-clean", "test-noisy"]
    corpus = Corpus(speech[0], "train", context=[5])
    assert corpus.samples >= 3000 and corpus.classes == 200 and corpus.shape == (11, 60)
    shards = [read_shard(path) for path in folder_parts(speech[0])["train"]]
    features = np.concatenate([shard.arrays["features"] for shard in shards]).astype(float)
    assert np.allclose(features.mean(0), corpus.attributes["mean"], rtol=1e-5, atol=1e-5)
    assert np.allclose(features.std(0), corpus.attributes["standard_deviation"], rtol=1e-4)
    assert len(corpus.attributes["class_names"].split(" ")) == 200
    assert len(np.unique(corpus.targets)) > 150


def test_shards_name_their_speakers(speech: list[Path]) -> None:
    heard = {}
    for part, paths in folder_parts(speech[0]).items():
        heard[part] = {name.split("/")[0] for name in read_shard(paths[0]).attributes["speakers"].split(" ")}
    assert not heard["train"] & (heard["dev"] | heard["test-clean"] | heard["test-noisy"])
    assert not heard["test-clean"] & heard["test-noisy"]


def test_the_alignment_is_that_of_the_sound(speech: list[Path]) -> None:
    """Frames that the alignment calls pauses are quieter than the others, and each phone comes once, in order."""
    from mpitrain.data.importers.espeak import PAUSE, RATE, Voice, speak

    spoken = speak("bn", Voice("m3", 50, 50, 170), "আমি ভাত খাই। সে বাড়ি যাই।")
    assert spoken.starts[0] == 0 and (np.diff(spoken.starts) > 0).all() and spoken.starts[-1] < len(spoken.samples)
    centres = frame_centres(len(spoken.samples), RATE)
    phone = np.searchsorted(spoken.starts, centres, "right") - 1
    silent = np.array([spoken.phones[number] == PAUSE for number in phone])
    loudness = np.array([np.abs(spoken.samples[c - 110 : c + 110].astype(float)).mean() for c in centres])
    assert np.median(loudness[~silent]) > 20 * np.median(loudness[silent])
    assert [phone for phone in spoken.phones if phone != PAUSE][:6] == ["a", "m", "i", "bʰ", "a", "t"]


def test_a_voice_forgets_what_was_spoken_before_and_when(speech: list[Path]) -> None:
    from mpitrain.data.importers.espeak import Voice, speak

    voices = [Voice(variant, 60, 50, 160) for variant in ("f2", "klatt2", "whisper")]
    alone = [speak("en", voice, "The same words.").samples for voice in voices]
    time.sleep(1.05)  # espeak-ng would take its random seed from the second
    for voice, before in reversed(list(zip(voices, alone, strict=True))):
        assert np.array_equal(before, speak("en", voice, "The same words.").samples)


def test_frames_are_counted_as_kaldi_counts_them(speech: list[Path]) -> None:
    from mpitrain.data.importers.features import log_mel

    for count in (551, 770, 771, 5000):
        assert len(log_mel(np.ones(count), 22050, 23)) == len(frame_centres(count, 22050))


def test_the_wheel_has_all_variants(speech: list[Path]) -> None:
    import espeakng_loader

    folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
    assert len(set(VARIANTS)) == len(VARIANTS) and not {name for name in VARIANTS if not (folder / name).is_file()}


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mpitrain.data.importers.speech import prepare_speech

    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(BadInput, match=r"pip install mpitrain\[speech\]"):
        prepare_speech(tmp_path / "speech", SpeechRecipe(), 1.0, 1998)
    assert not (tmp_path / "speech").exists()


def test_an_interrupt_while_shards_are_written_can_be_repeated(
    speech: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpitrain.data.importers.speech import prepare_speech

    def interrupt(_: ShardWriter) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(ShardWriter.__init__.__kwdefaults__, "limit", SMALL)
    prepare = partial(prepare_speech, tmp_path, SpeechRecipe("bn", 20, True, 15.0, 3), 30 / 3600, 200, 1)
    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare()
    assert not list(tmp_path.glob("[!.]*"))
    prepare()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in speech[0].iterdir()
    }
    with pytest.raises(BadInput, match="already holds shards"):
        prepare()


@pytest.mark.parametrize("source", ["speech", "digits"])
def test_several_ranks_are_refused(launch: Callable[..., Any], tmp_path: Path, source: str) -> None:
    ended = launch(2, "prepare", source, "out")
    assert ended.status == 2 and ended.err.count("mpitrain: ") == 1 and not (tmp_path / "out").exists()
    assert "this source is prepared without mpirun; it uses all cores of one node" in ended.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_import_leaves_nothing(speech: list[Path], tmp_path: Path, number: int) -> None:
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "mpitrain", "prepare", "speech", "--hours", "99", "--jobs", "1", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            until = time.monotonic() + 90
            while process.poll() is None and not list(folder.glob(".speaking-*/train")):
                assert time.monotonic() < until, "nothing was begun within 90 s"
                time.sleep(0.02)
            process.send_signal(number)
            said = process.communicate(timeout=90)[1]
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "mpitrain: interrupted\n")
    assert not list(folder.iterdir())
