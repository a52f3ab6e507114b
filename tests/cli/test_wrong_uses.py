"""Wrong uses as a newcomer types them: one line that says what is wrong, and status 2; more stand in test_main.py."""

from pathlib import Path

import pytest

from mpitrain import config as configuration
from mpitrain.__main__ import main
from mpitrain.errors import BadInput

from ..conftest import refusals

SETTINGS = {
    "lr=1": "unknown key lr; here it is training.learning_rate",
    "training.lr=1": "unknown key training.lr; here it is training.learning_rate",
    "training.batch_size=1": "here it is training.minibatch",
    "adamw=true": "here it is algorithm.optimizer.name",
    "algorithm.adam=1": "here it is algorithm.optimizer.name",
    "schedule=cosine": "here it is training.schedule",
    "gpus=2": "here it is run.device",
    "training.learning_rate": "expected key=value",
    "training.learning_rate=fast": "training.learning_rate: Expected `float`",
    "training.learning_rate=-1": "training.learning_rate: Expected `float` > 0.0",
    "training.epochs=0": "training.epochs: Expected `float` > 0.0",
    "training.minibatch=2.5": "training.minibatch: Expected `int`",
    "training.schedule=cosin": "training.schedule: 'cosin': must be constant or cosine or linear",
    "algorithm.name=easgd-sync algorithm.order=round-robin": "algorithm.order: 'round-robin': must be free",
    "algorithm.order=fre": "algorithm.order: 'fre': must be free or round-robin",
    "training.warmup=200%": "training.warmup = '200%': as long as the whole training",
    "training.warmup=30": "training.warmup = 30.0: as long as the whole training",
    "algorithm.name=adamw": "an optimizer is algorithm.optimizer.name, with sgd, allreduce",
    "algorithm.name=adam": "an optimizer is algorithm.optimizer.name, with sgd, allreduce",
    "algorithm.name=easdg": "the nearest known is easgd",
    "algorithm.name=Easgd": "the nearest known is easgd",
    "algorithm.optimizer=adamw": "algorithm.optimizer: asgd has its own optimizer",
    "algorithm.optimizer.name=adam": "algorithm.optimizer: asgd has its own optimizer",
    "algorithm.tau=5": "unknown key algorithm.tau of asgd; it is one of ",
    "model.width=0": "model.width: Expected `float` > 0.0",
    "model.options.width=3": "model.options: belongs to model.import, which is not given",
    "model.loss=losses.py:own": "model.loss: belongs to model.import, which is not given",
    "data.options.path=x": "data.options: belongs to data.import, which is not given",
    "model.output=tanh": "model.output: 'tanh': must be logistic or softmax",
    "run.device=cuda": "run.device: 'cuda': must be auto or cpu or gpu",
    "run.threads=-1": "run.threads: Expected `int` >= 0",
    "run.team=3": "run.team = 3: workers of this algorithm are single ranks",
    "run.exchange=tcp": "run.exchange: 'tcp': must be ",
    "run.checkpoint_every=often": "run.checkpoint_every: 'often': must be a number or auto",
    "run.checkpoint_every=-1": "run.checkpoint_every: Expected",
    "run.progress=quiet": "run.progress: 'quiet': must be auto or none or plain",
    "training.epochs=inf": "training.epochs: Expected `float` <= ",
    "training.clip_norm=-1": "training.clip_norm: Expected `float` >= 0.0",
    "training.learning_rate=0,1": "training.learning_rate: Expected `float`, got `str`",
    "training.seed=-1": "training.seed: Expected `int` >= 0",
}

COMMANDS = {
    "evaluate nowhere": "nowhere: no such run folder",
    "evaluate": "the following arguments are required: RUN",
    "export run": "the following arguments are required: --format",
    "predict run shards --out x.npz": "unrecognized arguments: --out",
    "report run --form svg": "unrecognized arguments: --form svg",
    "predict run": "the following arguments are required: DATA, OUT",
    "report": "the following arguments are required: RUN",
    "report nowhere": "nowhere: no such folder",
    "report run --format gif": "invalid choice: 'gif'",
    "compare": "the following arguments are required: CONFIG",
    "compare asgd": "--target-error: which error is to be reached?",
    "compare nosuch --target-error 0.1": "nosuch: neither a TOML file nor an algorithm",
    "simulate": "one of the arguments --cluster --replay is required",
    "describe --input 8*8": "--input 8*8: expected numbers",
    "describe none.toml": "none.toml: No such file",
    "describe --set model.import=net.py": "expected 'FILE.py:function'",
    "describe --set model.import=none.py:build": "none.py: No such file",
    "describe --set model.preset=resnet18": "model.preset: unknown 'resnet18'",
    "describe --set data.path=nowhere": "nowhere: no such folder; `mpitrain prepare` makes such folders",
    "check nowhere": "nowhere: no such folder",
    "prepare": "the following arguments are required: SOURCE",
    "prepare wav": "the following arguments are required: SOURCE, DIR",
    "calibrate": "the following arguments are required: FILE",
    "jobs .": "jobs: exists already",
    "train --epochs 3": "here it is --set training.epochs=VALUE",
    "train --batch-size 3": "here it is --set training.minibatch=VALUE",
    "train --gpus 2": "here it is --set run.device=VALUE",
    "train -x": "unrecognized arguments: -x",
    "train jobs": "jobs: a folder, not a configuration file; --resume jobs continues a run",
    "describe jobs": "jobs: a folder, not a configuration file; --resume jobs continues a run",
    "train jobs --config net.toml": "unrecognized arguments: --config",
    "Train": "Train: neither a command nor a configuration file; the nearest known is train",
    "help": "help: neither a command nor a configuration file; known: train, ",
    "x" * 300: "neither a command nor a configuration file; known: train, ",
    f"train {'x' * 300}.toml": ".toml: File name too long",
    "describe --classes 0 --input 8x8": "0 classes (--classes): a network of layers needs at least one",
    "compare easgd --target-error 5": "--target-error 5: expected fractions like 0.05,0.02, each once",
    "compare easgd --target-error 5%": "--target-error 5%: expected fractions like 0.05,0.02, each once",
    "compare easgd --target-error 0.05 --workers 0": "--workers 0: expected numbers like 1,2,4, each once",
    "compare easgd --target-error 0.05 --workers 1,x": "--workers 1,x: expected numbers like 1,2,4, each once",
    "compare easgd --target-error 0.05 --baseline msgd": "--baseline: msgd is none of the configurations",
    "prepare text --ending .rs jobs shards": "jobs: no file of text ends in .rs",
    "prepare images nowhere shards": "nowhere: no such folder",
    "prepare images jobs shards": "jobs: holds no folders of classes",
    "prepare text jobs shards --dev 10": "--dev 10: expected a share of the bytes below 1",
    "export run --format pt": "--format pt: unknown; known: safetensors, onnx, npz",
    "simulate --cluster strom2016": "--cluster strom2016: neither a file nor one of chan2014",
    "calibrate new.toml --nodes 0": "--nodes 0: at least 1",
    "calibrate new.toml --bandwidth 1Mbps": "--bandwidth 1Mbps: expected a number and its unit, such as 1Gbit",
    "report run --format svg": "--format svg: only --plots DIR writes such files",
    "compare easgd --target-error 0.05 --table --out typo": "--out: typo: no such folder",
    "report run --watch 0": "--watch 0: expected 1 to 3600 seconds",
    "check jobs": "jobs: holds no shards such as train-00000-of-00008.h5",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_key_or_value(setting: str) -> None:
    with pytest.raises(BadInput) as caught:
        configuration.load(None, setting.split())
    assert SETTINGS[setting] in str(caught.value)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs").mkdir()
    status, lines = refusals(command.split(), capsys)
    assert status == 2 and len(lines) == 1 and COMMANDS[command] in lines[0], lines


@pytest.mark.parametrize(
    ("words", "command"),
    [("evaluate run --bogus", "evaluate"), ("prepare digits one two", "prepare digits"), ("--lr 3", "train")],
)
def test_an_unknown_argument_is_refused_with_the_usage_of_its_command(
    words: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert capsys.readouterr().err.startswith(f"usage: mpitrain {command} [-h]")
