"""Code that a run folder names: said before it is executed, and executed for another user's folder only with trust."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from mpitrain import checkpoint
from mpitrain.__main__ import main
from mpitrain.checkpoint.files import SEAL, write_manifest
from mpitrain.errors import BadInput
from mpitrain.training.sources import OWN

from .conftest import make_run

pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
LOADED = ("torch._dynamo",)

#: Says that it is executed; its class lies in a module beside it.
NET = """
import sys
from torch.nn import functional
print("EXECUTED", file=sys.stderr, flush=True)
from parts import Net

def build(input_shape, classes, slope=1.0):
    print("EXECUTED", file=sys.stderr, flush=True)
    return Net(classes, slope)

def loss(outputs, targets):
    return functional.cross_entropy(outputs, targets)
"""

#: In training and in evaluation it imports a module for the first time when it is called.
PARTS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, slope):
        super().__init__()
        self.last, self.slope = nn.Linear(64, classes), slope
    def forward(self, x):
        if self.training:
            from early import flat
        else:
            from late import flat
        return self.last(flat(x)) * self.slope
"""

FLAT = "def flat(x):\n    return x.flatten(1)\n"
SETTINGS = ("algorithm.name=sgd", "training.epochs=0.1", "run.threads=1", "run.progress=none")
IMPORTED = (*SETTINGS, "model.import=net.py:build")


def arguments(*settings: str) -> list[str]:
    """Of the command line."""
    return [word for setting in settings for word in ("--set", setting)]


def write(folder: Path, **texts: str) -> None:
    """The user's files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"net": NET, "parts": PARTS, "early": FLAT, "late": FLAT, **texts}.items():
        (folder / f"{name}.py").write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the user's files."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    return tmp_path


def rewrite(run: Path, old: str, new: str) -> None:
    """Another configuration in the run and in its checkpoint, both intact."""
    (place,) = (run / "checkpoints").iterdir()
    text = (run / "config.toml").read_text().partition(SEAL)[0]
    assert old in text
    for folder in (run, place):
        (folder / "config.toml").write_text(checkpoint.sealed(text.replace(old, new)))
    names = json.loads((place / "manifest.json").read_text())["files"]
    write_manifest(place, [name for name in names if not name.endswith(".h5")])


def copied(run: Path) -> None:
    """The run's own copies are all there is."""
    for path in run.parent.glob("*.py"):
        path.unlink()


def unchanged(run: Path) -> None:
    """The files are those that the run was trained with."""


def own_file(run: Path) -> None:
    """The configuration names a file of the folder."""
    copied(run)
    rewrite(run, "net.py:build", "run/model/import/net.py:build")


def module(run: Path) -> None:
    """The configuration names a module in the current folder, from where `python -m` imports."""
    rewrite(run, "net.py:build", "net:build")


def without_sums(run: Path) -> None:
    """model.json lists no files."""
    for path in run.rglob("model.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "files": {}}))
    with_manifests(run)


def without_record(run: Path) -> None:
    """There is no model.json."""
    for path in run.rglob("model.json"):
        path.unlink()
    with_manifests(run)


def with_manifests(run: Path) -> None:
    """The manifests are those of the files that are there now."""
    for path in run.rglob("manifest.json"):
        names = json.loads(path.read_text())["files"]
        write_manifest(
            path.parent, [name for name in names if not name.endswith(".h5") and (path.parent / name).exists()]
        )


def options(run: Path) -> None:
    """The configuration gives arguments to a function that is the user's own anyway."""
    rewrite(run, 'import = "net.py:build"', 'import = "net.py:build"\noptions = {slope = 2.0}')


WAYS = (copied, unchanged, own_file, module, without_sums, without_record, options)

COMMANDS = {
    "evaluate": ["evaluate", "run"],
    "predict": ["predict", "run", "shards", "p.npz"],
    "export": ["export", "run", "--format", "npz", "--out", "m.npz"],
    "resume": ["--resume", "run"],
    "continue": ["--continue", "run"],
    "simulate": ["simulate", "--cluster", "node.toml", "--ranks", "3", "--resume", "run"],
}

NODE = """
nodes = 1
ranks_per_node = 3
cores_per_node = 3
gradient = {seconds = 1e-4, seconds_per_sample = 2e-5}
within_node = {latency = 1e-6, bandwidth = 5e9}
between_nodes = {latency = 3e-5, bandwidth = 1.25e8}
"""


def forget() -> None:
    """Let the code be executed anew when it is imported again."""
    for name in [name for name in sys.modules if name.startswith(OWN) or name in ("net", "parts", "early", "late")]:
        del sys.modules[name]


@pytest.fixture
def started(folder: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a command in a process that has not executed the code yet: exit status and standard error."""
    from mpitrain.data.digits import prepare_digits

    prepare_digits(folder / "shards")
    (folder / "node.toml").write_text(NODE)

    def run(command: str, *more: str) -> tuple[int, str]:
        capfd.readouterr()
        forget()
        status = main([*COMMANDS[command], *more])
        return status, capfd.readouterr().err

    yield run
    forget()


def strange(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on this process is another user's."""
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)


def require_said(status: int, err: str, *words: str) -> None:
    """One line said what would be executed, before it was."""
    assert status == 0, err
    said, _, rest = err.partition("EXECUTED")
    assert "EXECUTED" in rest and said.count("\n") == 1, err
    assert said.startswith("mpitrain: model.import = ") and ": executing " in said, err
    for word in words:
        assert word in said, (word, err)


def require_refused(status: int, err: str) -> None:
    """One line refused it, and nothing was executed."""
    assert status == 2 and err.count("\n") == 1 and "EXECUTED" not in err, err
    assert "belongs to" in err and "--trust" in err and "model.import = " in err, err


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_every_way_to_name_code_is_said_and_wants_trust(
    way: Callable[[Path], None], folder: Path, started: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(folder / "run", *IMPORTED)
    way(folder / "run")
    monkeypatch.syspath_prepend(folder)
    require_said(*started("evaluate"), "net.py")
    strange(monkeypatch, folder)
    require_refused(*started("evaluate"))
    require_said(*started("evaluate", "--trust"), "net.py")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_executes_and_wants_trust(
    command: str, folder: Path, started: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(folder / "run", *IMPORTED)
    copied(folder / "run")
    copytree(folder / "run", folder / "again")
    require_said(*started(command), "model/import/net.py, the run's copy")
    (folder / "run").rename(folder / "first")
    (folder / "again").rename(folder / "run")
    strange(monkeypatch, folder)
    require_refused(*started(command))
    require_said(*started(command, "--trust"), "model/import/net.py, the run's copy")


@pytest.mark.parametrize("command", ["evaluate", "predict", "export"])
def test_a_run_that_names_no_code_wants_no_trust(
    command: str, folder: Path, started: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns it: of a network of layers nothing is executed."""
    make_run(folder / "run")
    strange(monkeypatch, folder)
    assert started(command)[0] == 0


@pytest.mark.parametrize("command", ["evaluate", "export", "resume"])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_options_that_are_not_finite(
    value: str, command: str, folder: Path, started: Callable[..., tuple[int, str]]
) -> None:
    """The run's record holds them as the configuration does."""
    write(folder, net=NET.replace("slope=1.0", "clip, slope=1.0"))
    make_run(folder / "run", *IMPORTED, f"model.options.clip={value}")
    status, err = started(command)
    assert status == 0, err


def test_a_replay_says_what_it_executes_and_wants_trust(
    folder: Path, started: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names the code; it is that of the run, to the bit, though the user's files have changed."""
    assert main([*arguments(*IMPORTED, "run.record_order=true"), "--out", "run"]) == 0
    write(folder, parts=PARTS.replace("* self.slope", "* 0.5"))
    monkeypatch.setitem(COMMANDS, "replay", ["simulate", "--replay", "run"])
    require_said(*started("replay"), "model/import/net.py, the run's copy", "parts.py is not what the run was")
    strange(monkeypatch, folder)
    require_refused(*started("replay"))
    require_said(*started("replay", "--trust"))
    status, err = started("replay", "--trust", "--new-code")
    assert (status == 1 and "rank 0: " in err) or "parameters after the same" in err, err


def test_python_says_what_it_executes_and_wants_trust(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`load` and `train`; a module that is given needs neither, as the folder's is not executed."""
    import torch

    import mpitrain

    make_run(folder / "run", *IMPORTED, "model.loss=net.py:loss")
    capfd.readouterr()
    mpitrain.load("run")
    said, executed, _ = capfd.readouterr().err.partition("EXECUTED")
    assert executed and [line.split(" = ")[0] for line in said.splitlines()] == [
        "mpitrain: model.import",
        "mpitrain: model.loss",
    ], said
    write(folder, net=NET + "# changed\n")  # which this process has not executed yet
    strange(monkeypatch, folder)
    for refused in (mpitrain.load, lambda run: mpitrain.train(resume=run)):
        with pytest.raises(BadInput, match=r"run: belongs to .*model\.import = .*model\.loss = .*trust=True"):
            refused("run")
    given = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with pytest.raises(BadInput, match=r"run: belongs to .* names, model\.loss = "):
        mpitrain.load("run", model=given)
    assert "EXECUTED" not in capfd.readouterr().err
    assert mpitrain.load("run", trust=True, new_code=True).parameters()
    assert mpitrain.train(resume="run", trust=True)["exit_reason"] == "finished"
    assert "net.py is not what the run was trained with" in capfd.readouterr().err


def test_one_file_of_another_user_is_enough(
    folder: Path, started: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder: the configuration, the record, or a copy decide what is executed."""
    make_run(folder / "run", *IMPORTED)
    place, status = folder / "run" / "checkpoints" / "000000000100", Path.stat
    for path in (folder / "run", place / "config.toml", place / "model.json", place / "model/import/late.py"):
        owned = type("Owned", (), {"st_uid": os.geteuid() + 1})

        def stat(self: Path, *words: Any, path: Path = path, owned: Any = owned, **more: Any) -> Any:
            frame = sys._getframe(1).f_code.co_name
            return owned if frame == "_require_own" and self.resolve() == path else status(self, *words, **more)

        monkeypatch.setattr(Path, "stat", stat)
        require_refused(*started("evaluate"))
        monkeypatch.undo()
        monkeypatch.chdir(folder)
    require_said(*started("evaluate"))


def test_who_reads_a_run_folder_executes_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`report`, `compare` and `describe`, whoever owns it."""
    assert main([*arguments(*IMPORTED), "--out", "comparison/runs/config-w1-s1"]) == 0
    run = folder / "comparison" / "runs" / "config-w1-s1"
    configured = run / "config.toml"
    capfd.readouterr()
    assert main(["report", str(run)]) in (0, None)
    for step in ("--list", "--table"):
        main(["compare", str(configured), "--target-error", "0.5", "--out", "comparison", step])
    assert main(["describe", str(configured)]) == 2
    out, err = capfd.readouterr()
    assert "EXECUTED" not in out + err and "of a run, whose code is not executed" in err


def test_ranks_refuse_together(launch: Callable[..., Any], folder: Path) -> None:
    """One line and status 2; with --trust one line says what all of them execute."""
    make_run(folder / "run", *IMPORTED)
    strange = "import os, sys; os.geteuid = lambda: 54321; from mpitrain.__main__ import main; sys.exit(main())"
    for command in (("evaluate", "run"), ("--resume", "run")):
        ended = launch(2, *command, program=("-c", strange), deadline=100)
        ours = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
        assert ended.status == 2 and len(ours) == 1 and "belongs to" in ours[0], ended.err
        assert "EXECUTED" not in ended.err
        ended = launch(2, *command, "--trust", program=("-c", strange), deadline=100)
        ours = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
        assert ended.status == 0 and len(ours) == 1 and ": executing " in ours[0], ended.err


def test_options_without_a_run_folder_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--trust", "--new-code"):
        assert main([*arguments(*IMPORTED), option]) == 2
        assert f"{option}: only where a run goes on" in capsys.readouterr().err


# ---- which code a run goes on with


@pytest.fixture(params=[1, 2])
def ran(request: pytest.FixtureRequest, launch: Callable[..., Any], alone: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a command on so many ranks: how it ended."""
    if request.param == 1:
        return alone
    return lambda *arguments: launch(request.param, *arguments, deadline=100)


def test_a_resumed_run_takes_its_own_code_or_the_corrected_file(
    ran: Callable[..., Any], alone: Callable[..., Any], folder: Path
) -> None:
    """Which one, and how to take the other, is said; what follows goes on with what was taken."""
    start = ("--set", "algorithm.name=msgd", *arguments("training.epochs=0.1", "run.progress=none"))
    assert ran(*start, *arguments("model.import=net.py:build"), "--out", "run").status == 0
    corrected = PARTS.replace("* self.slope", "* 0 + 7.0")
    write(folder, parts=corrected)
    ended = ran("--resume", "run", *arguments("training.epochs=0.2"))
    assert ended.status == 0, ended.err
    said = ended.err.partition("EXECUTED")[0]
    assert said.count("\n") == 1 and "model/import/net.py, the run's copy: " in said, said
    assert "parts.py is not what the run was trained with; --new-code takes it as it is now" in said, said
    assert (folder / "run/model/import/parts.py").read_text() == PARTS
    ended = ran("--resume", "run", "--new-code", *arguments("training.epochs=0.3"))
    assert ended.status == 0 and "parts.py is not what the run was trained with (--new-code)" in ended.err, ended.err
    assert json.loads((folder / "run/summary.json").read_text())["test_loss"] == pytest.approx(2.302585, abs=1e-5)
    assert (folder / "run/model/import/parts.py").read_text() == corrected
    write(folder)  # now the former text is what is not the run's
    ended = alone("evaluate", "run", "--json")
    assert ended.status == 0 and "the run's copy" in ended.err, ended.err
    assert json.loads(ended.out)["test_loss"] == pytest.approx(2.302585, abs=1e-5)
    ended = alone("evaluate", "run", "--json", "--new-code")
    assert ended.status == 0 and json.loads(ended.out)["test_loss"] != pytest.approx(2.302585, abs=1e-2), ended.err


def test_new_code_counts_though_nothing_is_left_to_train(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The network is evaluated with it, and the run folder has it from then on."""
    assert main([*arguments(*IMPORTED), "--out", "run"]) == 0
    before = json.loads((folder / "run/summary.json").read_text())
    assert main(["--resume", "run"]) == 0
    assert json.loads((folder / "run/summary.json").read_text()) == before
    corrected = FLAT.replace("(1)", "(1) * 0")
    write(folder, late=corrected)
    assert main(["--resume", "run", "--new-code"]) == 0
    after = json.loads((folder / "run/summary.json").read_text())
    assert after["parameters_sha256"] == before["parameters_sha256"] and after["test_loss"] != before["test_loss"]
    (newest,) = (folder / "run/checkpoints").glob("0*")
    for kept in (folder / "run", newest):
        assert (kept / "model/import/late.py").read_text() == corrected


def test_best_is_evaluated_with_the_code_that_it_was_trained_with(folder: Path, alone: Callable[..., Any]) -> None:
    """Each checkpoint keeps its own."""
    assert main([*arguments(*IMPORTED), "--out", "run"]) == 0
    best = json.loads(alone("evaluate", "run", "--json", "--checkpoint", "best").out)
    write(folder, parts=PARTS.replace("* self.slope", "* 0"))  # as good as chance
    assert main(["--resume", "run", "--new-code", *arguments("training.epochs=0.2")]) == 0
    assert json.loads(alone("evaluate", "run", "--json", "--checkpoint", "best").out) == best
    assert json.loads(alone("evaluate", "run", "--json").out)["test_error"] > best["test_error"]


def test_a_module_that_has_changed_is_said(
    folder: Path, started: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported as it is: there is no copy to take instead, though the run folder keeps its files."""
    monkeypatch.syspath_prepend(folder)
    make_run(folder / "run", *SETTINGS, "model.import=net:build")
    require_said(*started("evaluate"))
    write(folder, late=FLAT + "# changed\n")
    require_said(*started("evaluate"), "late.py is not what the run was trained with (a module is imported as it is)")
    assert (folder / "run/model/import/late.py").read_text() == FLAT


# ---- the files in the run folder


LOSS = """
from parts import weight
from torch.nn import functional

def loss(outputs, targets):
    from late import scale
    return functional.cross_entropy(outputs, targets) * weight * scale
"""


def test_files_of_one_name_do_not_meet(ran: Callable[..., Any], alone: Callable[..., Any], folder: Path) -> None:
    """models/net.py and losses/net.py, each with a parts.py of its own, and all that is done with the run folder."""
    import mpitrain

    write(folder / "models")
    write(folder / "losses", net=LOSS, parts="weight = 2\n", late="scale = 0.5\n")
    copied(folder / "run")
    named = ("model.import=models/net.py:build", "model.loss=losses/net.py:loss")
    ended = ran(*arguments(*SETTINGS, *named, "algorithm.name=msgd"), "--out", "run")
    assert ended.status == 0, ended.err
    summary = json.loads((folder / "run/summary.json").read_text())
    for name in ("models", "losses"):
        (folder / name).rename(folder / f"former-{name}")
    ended = ran("evaluate", "run", "--json")
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["test_loss"] == pytest.approx(summary["test_loss"], rel=1e-5)
    assert alone("prepare", "digits", "shards").status == 0
    assert alone("predict", "run", "shards", "p.npz").status == 0
    assert alone("export", "run", "--format", "safetensors").status == 0
    ended = ran("--resume", "run", *arguments("training.epochs=0.2"))
    assert ended.status == 0, ended.err
    assert mpitrain.load("run").run.samples == 288
    assert (folder / "run/model/import/parts.py").read_text() == PARTS
    assert (folder / "run/model/loss/parts.py").read_text() == "weight = 2\n"


def test_a_changed_copy_is_refused(folder: Path, started: Callable[..., tuple[int, str]]) -> None:
    """And so is a record that leads out of the run folder."""
    make_run(folder / "run", *IMPORTED)
    copied(folder / "run")
    with_manifests(folder / "run")
    place = folder / "run/checkpoints/000000000100"
    with (place / "model/import/parts.py").open("a") as file:
        file.write("# edited\n")
    with_manifests(folder / "run")
    status, err = started("evaluate")
    assert status == 2 and "model/import/parts.py: does not match its checksum in " in err, err
    text = (place / "model.json").read_text()
    (place / "model.json").write_text(text.replace('"parts.py"', '"../../../../parts.py"'))
    with_manifests(folder / "run")
    status, err = started("evaluate")
    assert status == 2 and "model.json: '../../../../parts.py' is not in " in err and "EXECUTED" not in err, err


def test_the_command_is_safe_in_a_folder_of_a_stranger(run_command: Callable[..., Any], folder: Path) -> None:
    """`python -P` leaves out the current folder, from which Python would import what the program imports."""
    make_run(folder / "run", *SETTINGS)
    for name in ("numpy", "torch", "mpi4py", "json"):
        (folder / "run" / f"{name}.py").write_text("raise SystemExit('EXECUTED')\n")
    ended = run_command(["env", "-C", "run", sys.executable, "-P", "-m", "mpitrain", "evaluate", "."], 100)
    assert ended.status == 0 and "EXECUTED" not in ended.err, ended.err
