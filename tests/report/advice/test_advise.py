"""`mpitrain advise`, on the embedded digits: its files, an interruption, its refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mpitrain.__main__ import main
from mpitrain.checkpoint.lease import Lease
from mpitrain.config import load
from mpitrain.report.advice import search
from mpitrain.report.advice.candidates import Candidate, Candidates
from mpitrain.report.advice.result import Advice
from mpitrain.report.advice.search import Question, Search, Tried, easier
from mpitrain.report.advice.trials import Outcome, Trial, Trials
from mpitrain.signals import Interrupted, Stop

from ...conftest import NODE

CONFIG = """
[model]
layers = [{ kind = "fully-connected", units = 16 }, { kind = "relu" }, { kind = "fully-connected", gain = 1.0 }]
[training]
epochs = 3
"""
WORDS = ["advise", "net.toml", "--cluster", "cluster.toml", "--ranks", "3", "--budget", "5m"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small search, where the program runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text(NODE)
    (tmp_path / "net.toml").write_text(CONFIG)
    for name, small in (("BRACKET", 3), ("FINALISTS", 1), ("SEEDS", 2), ("PATIENCE", 0)):
        monkeypatch.setattr(search, name, small)


def kept(out: Path) -> dict[str, Any]:
    """What came of each trial, without the time that it took."""
    found = {path.name: json.loads(path.read_text()) for path in (out / "trials").glob("*.json")}
    return {name: {key: each[key] for key in each.keys() - {"wall", "xxh3"}} for name, each in found.items()}


def test_an_advice_is_found_taken_up_again_and_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where every other trial is missing and one is damaged, the same ones are made, and come to the same."""
    out = tmp_path / "runs/advice"
    assert main(WORDS) == 0
    said = capsys.readouterr().out
    assert "without gradients: " in said and "with more seeds: " in said and "advised: " in said
    assert "what decided: " in said and "time to " in said and "0 asgd, as configured" in said
    found, advised = kept(out), (out / "advice.toml").read_text()
    for number, path in enumerate(sorted((out / "trials").glob("*.json"))):
        if number % 2:
            path.unlink()
        elif number == 4:
            path.write_text(path.read_text().replace("seconds", "secnods", 1))
    assert main([*WORDS, "--out", "runs/advice"]) == 0
    assert kept(out) == found and (out / "advice.toml").read_text() == advised
    assert (out / "report.html").exists() and (out / "advice.md").exists()
    assert load(out / "advice.toml", []).run.checkpoint_every == "auto"
    script = (out / "advice.sbatch").read_text()
    assert "#SBATCH --ntasks=3\n" in script and script.endswith('train runs/advice/advice.toml "$@"\n')
    assert subprocess.run(["bash", "-n", out / "advice.sbatch"], check=False).returncode == 0
    assert (
        main(["simulate", "runs/advice/advice.toml", "--cluster", "cluster.toml", "--ranks", "3", "--out", "run"]) == 0
    )


def test_a_signal_ends_it_with_75_and_it_goes_on(tmp_path: Path) -> None:
    """With a deadline outside; nothing that it has started is left."""
    command = [sys.executable, "-m", "mpitrain", *WORDS, "--set", "algorithm.name=easgd"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until, path = time.monotonic() + 120, tmp_path / "runs/advice/trials"
    while not kept(path.parent) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and "the same command continues" in said and "Traceback" not in said
    before = kept(path.parent)
    assert main([*WORDS, "--set", "algorithm.name=easgd"]) == 0
    assert before and before.items() <= kept(path.parent).items()


def test_every_configuration_has_trials_without_gradients(tmp_path: Path) -> None:
    """With keys that a phantom refuses, too: else all candidates would fall out, each by this line."""
    keys = '[pretraining]\nmethod = "layerwise"\n[run]\nrecord_order = true\ngradient_statistics = true\n'
    (tmp_path / "net.toml").write_text(CONFIG + keys)
    trial = Trial(Candidates({}, set(), 1).first, 0.1, 1, phantom=True)
    words = ["simulate", "net.toml", *WORDS[2:6], "--out", "run", *trial.settings(), "--phantom"]
    assert main(words) == 0


def test_trials_of_edited_code_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept of a trial belongs to what its files and modules beside it were."""
    found: list[Outcome | None] = []

    def run(search: Search) -> None:
        trial = Trial(search.candidates.first, 1.0, 1)
        found.append(search.trials._kept(trial))
        search.trials._ended(trial, 2, 2.0)
        raise Interrupted

    monkeypatch.setattr(Search, "run", run)
    (tmp_path / "net.py").write_text("import layers")
    log = tmp_path / "runs/advice/runs/000-asgd-1-s1.log"
    log.parent.mkdir(parents=True)
    log.write_text("mpitrain: it failed")
    for text in ("width = 1", "width = 1", "width = 2"):
        (tmp_path / "layers.py").write_text(text)
        assert main([*WORDS, "--set", "data.import=net.py:build"]) == 75
    assert [each and each.why for each in found] == [None, "it failed", None]


@pytest.mark.parametrize(
    ("status", "records", "why"),
    [
        (75, '{"event": "end", "exit_reason": "stopped"}', "stopped by a signal"),
        (1, '{"event": "failed", "text": "waited for rank 1", "silent": [1]}', "waited for rank 1"),
        (-9, "", "ended by signal 9"),
        (1, '{"event": "failed", "text": "not finite", "silent": []}', "KEPT not finite"),
        (1, '{"event": "end", "exit_reason": "diverged"}', "KEPT it diverged"),
    ],
)
def test_what_ended_for_once_is_tried_again(tmp_path: Path, status: int, records: str, why: str) -> None:
    """A trial that was stopped, or that lost a rank, has shown nothing of its candidate."""
    trials = Trials(tmp_path, 2, 1, {}, [], Stop())
    trial = Trial(Candidates({}, set(), 1).first, 1.0, 1)
    run = trials.run_folder(trial.name)
    run.mkdir(parents=True)
    (run / "config.toml").write_text("")
    (run / "metrics.jsonl").write_text(f'{{"event": "start", "samples": 0}}\n{records}\n')
    if "exit_reason" in records:
        (run / "summary.json").write_text(records)
    kept, said = why.startswith("KEPT "), why.removeprefix("KEPT ")
    Path(f"{run}.log").write_text(f"epoch 1.00\nmpitrain: {said}\n" if status > 0 else "epoch 1.00\n")
    assert trials._ended(trial, status, 2.0).why == said
    assert (trials._kept(trial) is not None) == kept


def test_a_signal_that_reaches_a_trial_alone_ends_the_search(tmp_path: Path) -> None:
    """Slurm's `--signal` signals the steps of a job, that is the ranks, and not the script that started the search."""
    stop, first = Stop(), Candidates({}, set(), 1).first
    (tmp_path / "candidates").mkdir()
    trials = Trials(tmp_path, 2, 1, {}, [sys.executable, "-c", "import sys; sys.exit(75)"], stop)
    found = trials.carry_out([Trial(first, 1.0, seed) for seed in (1, 2)], time.monotonic() + 60, lambda done: None)
    assert stop.flag and [each.why for each in found.values()] == ["stopped by a signal"]


@pytest.mark.parametrize("own, target", [(0.02, 0.021), (-2.0, -1.9), (0.0, 0.0)])
def test_the_default_target_is_reached_by_the_configuration(own: float, target: float) -> None:
    """Also where the figure of merit is below 0, as of a negative log-likelihood."""
    assert easier(own) == target


def test_a_target_below_0_is_one_of_a_figure_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not of an error rate."""
    asked: list[float | None] = []

    def run(search: Search) -> None:
        asked.append(search.question.target)
        raise Interrupted

    monkeypatch.setattr(Search, "run", run)
    (tmp_path / "data.py").write_text("")
    assert main([*WORDS, "--set", "data.import=data.py:build", "--target-error", "-1.5"]) == 75
    assert asked == [-1.5]


def test_data_without_a_held_out_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing tells which candidate is better: that is said at once, not after the whole budget."""
    parts = "{'train': (np.ones((40, 8, 8, 1), np.float32), np.arange(40) % 4)}"
    code = f"import numpy as np\ndef build():\n    return {parts}"
    (tmp_path / "data.py").write_text(code)
    assert main([*WORDS, "--set", "data.import=data.py:build", "--set", "algorithm.name=asgd"]) == 2
    assert "the configuration itself: no figure of merit on a part dev or test" in capsys.readouterr().err
    assert len(list((tmp_path / "runs/advice/trials").iterdir())) <= 2


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_rank_of_the_configuration_itself_is_no_bad_input(
    lost: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the first of its trials, or in a later one without which there is no target. The next search makes it anew."""
    launcher = tmp_path / "launcher"
    launcher.write_text(f'echo >> starts; shift; [ $(wc -l < starts) != {lost} ] || kill -9 $$; exec "$@"')
    words = ["advise", "net.toml", "--here", "--ranks", "1", "--launch", "sh launcher {ranks}", "--budget", "5m"]
    assert main([*words, "--set", "algorithm.name=sgd"]) == 1
    log = next((tmp_path / "runs/advice/runs").glob("*.log")).name if lost == 1 else "000-sgd-3-s1.log"
    why = f"the configuration itself: ended by signal 9 (see runs/advice/runs/{log})"
    assert capsys.readouterr().err == f"mpitrain: {why}\n"
    assert len(kept(tmp_path / "runs/advice")) == lost - 1


REFUSED = {
    "advise": "the following arguments are required: --ranks",
    "advise --ranks 2": "one of the arguments --cluster --here is required",
    "advise --ranks 2 --here --cluster cluster.toml": "not allowed with argument",
    "advise --ranks 0 --cluster cluster.toml": "--ranks 0: at least 1",
    "advise --ranks 9 --cluster cluster.toml": "--ranks 9: cluster.toml has room for 8",
    "advise --ranks 2 --cluster nowhere.toml": "nowhere.toml: No such file",
    "advise --ranks 2 --cluster net.toml": "net.toml: ",
    "advise --ranks 2 --cluster cluster.toml --budget soon": "--budget soon: expected a time, such as 90s, 10m or 2h",
    "advise --ranks 2 --cluster cluster.toml --time 0": "--time 0: expected a time",
    "advise --ranks 2 --cluster cluster.toml --target-error -1": "--target-error -1: not an error",
    "advise --ranks 2 --cluster cluster.toml --target-error 5": "not an error, which is a fraction such as 0.05",
    "advise --ranks 2 --cluster cluster.toml --seed -1": "--seed -1: at least 0",
    "advise --ranks 2 --cluster cluster.toml --set training.lr=1": "unknown key training.lr",
    "advise --ranks 2 --cluster cluster.toml --launch srun": "--launch: simulated ranks are started without",
    "advise --ranks 2 --here --launch srun": "--launch: 'srun' has no {ranks}",
    "advise nowhere.toml --ranks 2 --cluster cluster.toml": "nowhere.toml: No such file",
    "advise --ranks 2 --cluster cluster.toml --set data.path=nowhere": "nowhere: no such folder",
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_wrong_use_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(command.split())
    except SystemExit as end:  # argparse's
        status = int(str(end.code))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mpitrain")]
    assert status == 2 and len(lines) == 1 and REFUSED[command] in lines[0], lines


# ---- the choice, by hand


def tried(number: int, algorithm: str, seconds: list[float], first: float = 0.9, **settings: object) -> Tried:
    """A candidate. `seconds` has a number for each seed: after half of it the error is `first`, after all of it 0.1."""
    table = {"algorithm": {"name": algorithm}}
    candidate = Candidate(number, algorithm, table, {f"algorithm.{key}": value for key, value in settings.items()})
    curves = [
        [{"seconds": at * each, "samples": 100 * at * each, "merit": merit} for at, merit in ((0.5, first), (1, 0.1))]
        for each in seconds
    ]
    told: dict[str, Any] = {"seconds": 9.0, "samples": 900.0}
    outcomes = [Outcome(str(number), summary=told, curve=curve) for curve in curves]
    return Tried(candidate, share=1.0, epochs=1.0, outcomes=outcomes)


@pytest.mark.parametrize("used", ["runs/advice", "runs/advice/runs/000-asgd-3-s1"])
def test_two_searches_do_not_share_a_folder(used: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second one is refused, also while a training goes on of one that was killed, and leaves the folder to it."""
    folder = tmp_path / used
    folder.mkdir(parents=True)
    lease = Lease(folder)
    assert main(WORDS) == 2
    assert capsys.readouterr().err == f"mpitrain: {used}: in use by process {os.getpid()} on {gethostname()}\n"
    assert (folder / "in-use.json").exists()
    lease.release()
    assert not folder.exists()


def test_of_those_as_good_the_one_that_depends_on_less_is_taken() -> None:
    """The best comes there after 2 to 4 s. Within that are a server, and fewer options."""
    rows = [
        tried(0, "asgd", [9.0, 9.0, 9.0]),
        tried(1, "allreduce", [2.0, 3.0, 4.0], momentum=0.5, bucket_mb=1.0),
        tried(2, "easgd", [3.2, 3.2, 3.2]),
        tried(3, "allreduce", [3.5, 3.5, 3.5], momentum=0.8),
        tried(4, "msgd", [4.5, 4.5, 4.5]),
    ]
    found = Advice(rows, Question(0.1, None, 9.0))
    assert [each.tried.candidate.number for each in found.equal] == [1, 2, 3]
    assert found.chosen.tried.candidate.number == 3
    said = "\n".join(found.lines())
    assert "as good within the error" in said and "as asgd, as configured (9 s (9 s to 9 s))" in said
    assert "needs 0.39 times as many" in said


def test_a_first_evaluation_below_the_target_is_an_upper_bound() -> None:
    """It is said in the line and the table, and neither how many samples are needed nor how many a second decided."""
    found = Advice([tried(0, "asgd", [9.0, 9.0]), tried(1, "easgd", [2.0, 4.0])], Question(0.9, None, 9.0))
    assert [row[1] for row in found.cells()] == ["≤ 1.5 s", "≤ 4.5 s"]
    said = "\n".join(found.lines())
    assert "time to 90.00% test error: ≤ 1.5 s\n" in said and "\n≤: the first evaluation was already that low" in said
    assert "decided: only when the first evaluation came" in said and "with asgd, as configured (≤ 4.5 s), too" in said
    assert "times as many" not in said


def test_how_many_samples_are_needed_has_a_bound_where_the_time_has_one() -> None:
    """easgd was below the target at its first evaluation, asgd not."""
    found = Advice([tried(0, "asgd", [9.0, 9.0], first=0.95), tried(1, "easgd", [2.0, 4.0])], Question(0.9, None, 9.0))
    assert "and needs at most 0.31 times as many to come there" in "\n".join(found.lines())


def test_a_target_that_nobody_reached_is_said() -> None:
    found = Advice([tried(0, "asgd", [2.0, 4.0])], Question(0.01, None, 9.0))
    assert "not reached: 10.00% after 9 s" in str(found.chosen)
    assert any(line.startswith("no candidate reached that") for line in found.lines())


def test_a_training_that_ended_before_the_time_is_said() -> None:
    """In the line and in the table. Nobody trains on more than twice the configuration's samples."""
    found = Advice([tried(0, "asgd", [8.9]), tried(1, "easgd", [0.29, 2.0])], Question(None, 9.0, 9.0))
    short = "10.00% (10.00% to 10.00%) after 0.29 s, not trained longer"
    assert [row[1] for row in found.cells()] == ["10.00%", short]
    alone = Advice([tried(1, "easgd", [0.29])], Question(None, 3600.0, 3600.0))
    assert alone.lines()[1] == "test error after 1 h 0 min: 10.00% after 0.29 s, not trained longer"


def test_trainings_that_were_cut_short_are_said_and_advised_in_full(tmp_path: Path) -> None:
    row = tried(0, "asgd", [2.0])
    row.share = 1 / 3
    found = Advice([row], Question(0.1, None, 27.0, 1 / 3))
    assert "trainings ended after 9 s of 27 s: the order beyond is extrapolated" in found.lines()
    trials: Any = SimpleNamespace(folder=tmp_path, ranks=3, where={}, run_folder=lambda name: tmp_path / "none")
    found.write(trials)
    assert load(tmp_path / "advice.toml", []).training.epochs == 3


def test_a_seed_that_did_not_end_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    finals = Search.__new__(Search)
    finals.question, finals.tried = Question(0.1, None, 9.0), [tried(0, "asgd", [3.0]), tried(1, "easgd", [2.0])]
    finals._epochs, finals._seed, finals._samples = 1.0, 1, 0.0
    monkeypatch.setattr(finals, "_try", lambda *_: {})
    finals._finals()
    assert [len(each.outcomes) for each in finals.tried] == [1, 1]


def test_the_best_are_tried_first_as_the_time_may_not_be_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine candidates came to an error of 10 % after the seconds below: number 7 first, then 4, then 2. These three go
    on in that order. They train with another seed, too, and only then does the configuration, which has number 0."""
    found, asked = Search.__new__(Search), list[list[int]]()
    own, *rows = (tried(n, "asgd", [each]) for n, each in enumerate((9.5, 5.0, 4.0, 8.0, 3.0, 9.0, 6.0, 2.0, 7.0, 9.2)))
    outcomes = {row.candidate.number: row.outcomes[0] for row in [own, *rows]}
    found.question, found.tried = Question(0.1, None, 9.0), [own]
    found._epochs, found._seed, found._samples, found.phantoms = 1.0, 1, 0.0, False

    def trained(trials: list[Trial], *_: object) -> dict[str, Outcome]:
        asked.append([trial.candidate.number for trial in trials])
        return {trial.name: outcomes[trial.candidate.number] for trial in trials}

    monkeypatch.setattr(search, "BRACKET", 9)
    monkeypatch.setattr(search, "FINALISTS", 3)
    monkeypatch.setattr(found, "_try", trained)
    found._bracket(rows)
    found._finals()
    assert asked == [[], [*range(1, 10)], [7, 4, 2], [7, 4, 2, 0]]  # none without gradients


def test_a_simulation_of_more_workers_takes_longer() -> None:
    """2 s of start and 3 s of one worker's gradients; of four ranks' 2 + 4 · 3 s. Real ranks compute side by side."""
    found = Search.__new__(Search)
    found.tried, found.phantoms = [Tried(Candidate(0, "msgd", {}), Outcome("0", wall=2.0))], True
    found.trials = cast(Trials, SimpleNamespace(ranks=4))
    short = Outcome("1", wall=5.0, summary={"workers": 1})
    assert found._dearest(short) == 14.0
    found.phantoms = False
    assert found._dearest(short) == 5.0


def test_what_led_and_did_not_end_in_time_is_said() -> None:
    """It had trained for a third; one that had trained for a ninth was nobody's rival yet."""
    rows = [tried(0, "asgd", [5.0, 5.0]), tried(1, "easgd", [1.0]), tried(2, "msgd", [1.0])]
    for row, share in zip(rows[1:], (1 / 3, 1 / 9), strict=True):
        row.share, row.fell = share, search.LATE
    said = Advice(rows, Question(0.1, None, 9.0)).lines()
    assert "the budget was spent before others ended that were among the best: easgd" in said


def test_a_finalist_whose_other_seeds_did_not_end_in_time_is_not_passed_over() -> None:
    """One that needs 2 s is advised before one that needs 4 s with each of two seeds."""
    found = Advice([tried(1, "easgd", [4.0, 4.0]), tried(2, "allreduce", [2.0])], Question(0.1, None, 9.0))
    assert found.chosen.tried.candidate.number == 2


def test_a_budget_in_which_no_trial_ends_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """All have then fallen out, and nothing is known of what the network carries."""
    look = Search.__new__(Search)
    left = [tried(1, "easgd", []), tried(2, "asgd", [])]
    look.tried = [*left]
    monkeypatch.setattr(look, "_phantom", lambda candidate: SimpleNamespace(name=candidate.shown))
    monkeypatch.setattr(look, "_try", lambda *_: {})
    look._look(left)
    assert [each.fell for each in left] == [search.LATE] * 2
