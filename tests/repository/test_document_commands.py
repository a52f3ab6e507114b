"""The documents' commands: the program takes each of them, and those of the tutorials run, on small data.

Not run are commands that download or install something, submit to a cluster, or want a GPU.
"""

import importlib.util
import io
import json
import pickle
import re
import shlex
import shutil
import tarfile
import wave
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from mpitrain import config as configuration
from mpitrain.__main__ import COMMANDS, parser
from mpitrain.data.writer import ShardWriter
from mpitrain.files import Record

LOADED = ("torch",) if importlib.util.find_spec("torch") else ()  # warm ranks load it
ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("examples/**/README.md"))]
NOT_RUN = (
    r"^(pip|python3 -m venv|\. venv|curl|sphinx-build|tensorboard|python3 tests|ali-to-pdf|srun|export|\. jobs|sbatch"
    r"|python -m mpitrain launch)"  # which starts ranks of its own: tests/cli/test_launch.py
)


class Command(NamedTuple):
    """Arguments of the program, and the number of ranks of its mpirun, 0 without one."""

    words: list[str]
    ranks: int


class Block(NamedTuple):
    """A fenced or indented block of a page; `kind` is what stands behind the fence."""

    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Those of a page, in order."""
    found = re.findall(r"^```(.*)\n((?:.*\n)*?)```$|((?:^    .*\n|^\n(?=    ))+)", page.read_text(), re.MULTILINE)
    return [Block(kind, fenced or indented) for kind, fenced, indented in found]


def lines(page: Path) -> list[str]:
    """The command lines of a page: joined where they are continued, without prompts and comments, cut at && and ;."""
    text = "\n".join(block.text for block in blocks(page) if block.kind in ("", "sh", "console"))
    whole = [
        re.sub(r"\s{2,}#.*", "", line).strip().removeprefix("$ ") for line in text.replace("\\\n", " ").split("\n")
    ]
    return [part.strip() for line in whole for part in re.split(r"&&|;", line)]


def command(line: str) -> Command | None:
    """What a line starts of this program; None if it is another command, or output."""
    if not re.search(r"(^|\s)mpitrain(\s|$)", line) or re.match(r"mpitrain [\d:]", line) or "|" in line:
        return None
    match = re.match(r"(?:(?:mpirun|srun)(?: -n (\d+))?(?: --mpi=\S+)? )?(?:python -m )?mpitrain\b(.*)", line)
    return Command(shlex.split(match[2]), int(match[1] or 0)) if match else None


def commands(page: Path) -> list[Command]:
    """Those of the program on a page."""
    return [found for line in lines(page) if (found := command(line))]


def check(words: list[str]) -> None:
    """Whether the command line takes these words, and the configuration the keys that they set."""
    name = words[0] if words and words[0] in COMMANDS else "train"
    options = parser(name).parse_args(words if words and words[0] == name else [name, *words])
    table: Record = {}
    if given := getattr(options, "config", None):
        files = [ROOT / "docs" / given, ROOT / given] if isinstance(given, Path) else []
        table = next((configuration.read_toml(path) for path in files if path.exists()), {})
    for override in getattr(options, "set", []):
        configuration.set_key(table, override)
    configuration.resolve(table)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_program_takes_every_command(page: Path) -> None:
    """Of all pages, whether a test runs it or not: command, options and keys exist."""
    for each in commands(page):
        try:
            check(each.words)
        except SystemExit:
            pytest.fail(f"mpitrain {shlex.join(each.words)}")


def test_commands_are_found() -> None:
    """By hand."""
    assert command("mpirun -n 8 python -m mpitrain --set a.b=c") == Command(["--set", "a.b=c"], 8)
    assert command("mpitrain report runs/one") == Command(["report", "runs/one"], 0)
    assert command("mpitrain 0.1.0: asgd on 8 ranks") is None and command("pip install mpitrain-x") is None
    assert sum(len(commands(page)) for page in PAGES) > 40
    with pytest.raises(SystemExit):
        check(["report", "--nothing", "run"])


# ---- small data under the names that the pages use


def frames(folder: Path, dims: int = 40, classes: int = 20) -> None:
    """Shards of random frames."""
    rng = np.random.default_rng(1)
    for part, utterances in (("train", 20), ("test", 4)):
        writer = ShardWriter(folder, part, "frames", {"classes": classes, "source": "noise"})
        for number in range(utterances):
            features = rng.normal(size=(50, dims)).astype(np.float32)
            writer.add(features, rng.integers(0, classes, 50).astype(np.int32), key=f"{part}-{number}")
        writer.finish()


def cifar(path: Path) -> None:
    """CIFAR-10's archive with random pictures: 40 a batch."""
    rng = np.random.default_rng(1)
    with tarfile.open(path, "w:gz") as archive:
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
            batch = {b"data": rng.integers(0, 256, (40, 3072)).astype(np.uint8), b"labels": [n % 10 for n in range(40)]}
            names = {b"label_names": [f"class{n}".encode() for n in range(10)]}
            content = pickle.dumps(names if name == "batches.meta" else batch, protocol=2)
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def pictures(folder: Path) -> None:
    """Ten PNG files of each of two classes, of different sizes, and a file that is no picture."""
    image = pytest.importorskip("PIL.Image", reason="the extra mpitrain[images] is not installed")
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        (folder / name / "notes.txt").write_text("not a picture")
        for place in range(10):
            image.new("RGB", (32 + place, 40), (200 * number, place, 0)).save(folder / name / f"{place}.png")


def kaldi(folder: Path) -> None:
    """A data folder with features, speakers and their means, and alignments; recordings with labels."""
    kaldiio = pytest.importorskip("kaldiio", reason="the extra mpitrain[kaldi] is not installed")
    pytest.importorskip("kaldi_native_fbank", reason="the extra mpitrain[speech] is not installed")
    rng = np.random.default_rng(1)
    data, keys = folder / "data" / "train", [f"s{speaker:02d}-u{number}" for speaker in range(24) for number in (1, 2)]
    data.mkdir(parents=True)
    features = {key: rng.normal(size=(30, 40)).astype(np.float32) for key in keys}
    aligned = {key: np.arange(30, dtype=np.int32) % 10 for key in keys}
    sums = {
        key[:3]: np.stack([np.append(features[key].sum(0), 30.0), np.append(features[key].sum(0) ** 2, 0.0)])
        for key in keys
    }
    for scp, values in ((data / "feats.scp", features), (folder / "pdf.scp", aligned), (data / "cmvn.scp", sums)):
        kaldiio.save_ark(str(folder / f"{scp.stem}.ark"), values, scp=str(scp))
    (data / "utt2spk").write_text("".join(f"{key} {key[:3]}\n" for key in keys))
    (folder / "recordings").mkdir()
    for number in range(12):
        with wave.open(str(folder / "recordings" / f"r{number:02d}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(rng.integers(-9000, 9000, 8000).astype("<i2").tobytes())
    labels = [f"r{number:02d} 0.1 0.3 a\nr{number:02d} 0.3 0.4 b\n" for number in range(12)]
    (folder / "labels.txt").write_text("".join(labels))
    (folder / "recordings" / "utt2spk").write_text("".join(f"r{number:02d} r{number:02d}\n" for number in range(12)))


# ---- the pages

SHORT = ["--set", "training.epochs=1", "--set", "run.evaluate_every=0", "--set", "run.threads=1"]
#: The program, as often as there are lists of words, in one launch.
PROGRAM = """
import json, sys
from mpitrain.__main__ import main
for words in json.loads(sys.argv[1]) if __name__ == "__main__" else []:  # else: a process of an import
    if status := main(words):
        sys.exit(f"status {status}: mpitrain {' '.join(words)}")
"""


def run_all(launch: Callable[..., Any], folder: Path, wanted: list[Command]) -> None:
    """Run commands in the launch's folder, neighbours on as many ranks in one launch, three at most."""
    (folder / "program.py").write_text(PROGRAM)
    for ranks, group in groupby(wanted, key=lambda each: min(each.ranks or 1, 3)):
        words = [each.words for each in group]
        ended = launch(ranks, json.dumps(words), program=("program.py",), deadline=300)
        assert ended.status == 0, f"{words}\n{ended.out}\n{ended.err}"


def trains(words: list[str]) -> bool:
    """Whether the words are of a training."""
    return not words or words[0] == "train" or words[0] not in COMMANDS


def shortened(page: str, changed: dict[str, str], *settings: str) -> list[Command]:
    """The commands of a page but those that are not run, with other words in some places and short trainings."""
    found = []
    for line in lines(ROOT / page):
        each = command(line)
        if each is None or re.match(NOT_RUN, line) or "run.device=gpu" in line:
            continue
        words = [changed.get(word, word) for word in each.words]
        found.append(Command([*words, *SHORT, *settings] if trains(words) else words, each.ranks))
    return found


def test_of_the_readme_and_of_checkpoints(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The first command is that of the page, and its run is asked for by the lines with which it ends.

    The configuration of Chan & Lane has shards of its shape.
    """
    frames(tmp_path / "SHARDS", dims=23)
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    wanted = shortened("README.md", {"RUN...": "my-run"}, "--set", "training.minibatch=16")
    (shown,) = {word for each in wanted for word in each.words if word.startswith("runs/2")}
    wanted[0].words.extend(["--out", shown])
    run_all(launch, tmp_path, wanted)
    assert (tmp_path / "my-run" / "summary.json").exists() and len(list((tmp_path / "runs").iterdir())) >= 3
    shutil.rmtree(tmp_path / "my-run")
    run_all(launch, tmp_path, shortened("docs/checkpoints.md", {}))


def test_of_images(launch: Callable[..., Any], tmp_path: Path) -> None:
    cifar(tmp_path / "cifar-10-python.tar.gz")
    pictures(tmp_path / "pictures")
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    small = ("--set", "training.minibatch=10", "--set", "run.train_subset=10")
    run_all(launch, tmp_path, shortened("docs/images.md", {}, *small))
    assert (tmp_path / "report.html").exists() and len(np.load(tmp_path / "guesses.npz")["posteriors"]) == 2


def test_of_kaldi_and_recordings(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The second `shards/mine` of the page is another folder here."""
    kaldi(tmp_path)
    wanted = shortened("docs/kaldi.md", {}, "--set", "training.minibatch=32")
    wav = [each for each in wanted if each.words[:2] == ["prepare", "wav"]]
    run_all(launch, tmp_path, [each for each in wanted if each not in wav])
    assert (tmp_path / "loglikes.scp").exists() and len(wav) == 1
    shutil.rmtree(tmp_path / "shards")
    run_all(launch, tmp_path, wav)


def test_of_speech(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Twenty seconds instead of an hour."""
    pytest.importorskip("espeakng_loader", reason="the extra mpitrain[speech] is not installed")
    wanted = shortened("docs/speech.md", {"1998": "200"})
    (made,) = (each for each in wanted if each.words[:2] == ["prepare", "speech"])
    made.words[made.words.index("--hours") + 1] = "0.006"
    run_all(launch, tmp_path, wanted)


def test_of_networks_runs_and_models(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Everything that needs no more than a run of the digits, in the order in which a reader might do it."""
    pytest.importorskip("kaldiio", reason="the extra mpitrain[kaldi] is not installed")
    pytest.importorskip("onnxruntime", reason="the extra mpitrain[onnx] is not installed")
    digits = [
        ["prepare", "digits", "SHARDS"],
        *(["--out", f"runs/{name}", *SHORT] for name in ("first", "second", "RUN")),
    ]
    run_all(launch, tmp_path, [Command(words, 0) for words in digits])
    (tmp_path / "RUN").symlink_to("runs/RUN")
    mine, cluster = (
        next(b.text for b in blocks(ROOT / "docs" / p) if b.kind == "toml") for p in ("networks.md", "simulate.md")
    )
    (tmp_path / "mine.toml").write_text(mine)
    (tmp_path / "cluster.toml").write_text(cluster)
    pages = ["docs/networks.md", "docs/report.md", "docs/stability.md", "docs/simulate.md"]
    wanted = [each for page in pages for each in shortened(page, {"runs/*": "runs/first"})]
    wanted += [Command([*each.words, "--list"], 0) for each in shortened("docs/compare.md", {})]
    for each in wanted:
        if each.words[0] == "simulate" and "--replay" not in each.words:
            epochs = 8 if "33" in each.words else 2  # in fewer, none of 32 workers comes to its first exchange
            each.words.extend(["--set", f"training.epochs={epochs}", "--set", "run.evaluate_every=0"])
    wanted += shortened("docs/trained.md", {})
    run_all(launch, tmp_path, [*wanted, Command(["export", "RUN", "--format", "npz"], 0)])
    assert {path.name for path in (tmp_path / "runs" / "RUN").glob("model.*")} >= {"model.onnx", "model.npz"}
    python(tmp_path, "docs/trained.md", "import numpy as np\nutterance = np.zeros((20, 40))\n", launch)


def test_of_shards_of_your_own(launch: Callable[..., Any], tmp_path: Path) -> None:
    python(tmp_path, "docs/shards.md", "", launch)
    assert len(list((tmp_path / "shards" / "own").iterdir())) == 2


def test_of_pytorch(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The page's module, trained by its configuration and commands, and from Python."""
    pytest.importorskip("torch", reason="the extra mpitrain[torch] is not installed")
    pytest.importorskip("safetensors", reason="the extra mpitrain[safetensors] is not installed")
    page = blocks(ROOT / "docs/pytorch.md")
    for name, kind in (("net.py", "python"), ("net.toml", "toml")):
        (tmp_path / name).write_text(next(block.text for block in page if block.kind == kind))
    run_all(launch, tmp_path, shortened("docs/pytorch.md", {}))
    assert (tmp_path / "my-net" / "model.safetensors").exists()
    python(tmp_path, "docs/pytorch.md", "import numpy\nimages = numpy.zeros((3, 8, 8, 1), numpy.uint8)\n", launch)


def test_of_data_of_your_own(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The page's data, network and configuration."""
    pytest.importorskip("torch", reason="the extra mpitrain[torch] is not installed")
    page = blocks(ROOT / "docs/data.md")
    code, table = ([block.text for block in page if block.kind == kind] for kind in ("python", "toml"))
    for name, text in zip(("data.py", "net.py", "curve.toml"), (*code, *table), strict=True):
        (tmp_path / name).write_text(text)
    run_all(launch, tmp_path, shortened("docs/data.md", {}))
    assert (tmp_path / "curve" / "data" / "import" / "data.py").exists()


def python(folder: Path, page: str, before: str, launch: Callable[..., Any]) -> None:
    """Run the blocks of Python on a page, one after the other."""
    texts = [block.text for block in blocks(ROOT / page) if block.kind == "python"]
    assert texts
    (folder / "page.py").write_text(before + "\n".join(texts))
    ended = launch(1, program=("page.py",))
    assert ended.status == 0, f"{page}\n{ended.out}\n{ended.err}"
