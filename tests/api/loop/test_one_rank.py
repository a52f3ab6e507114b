"""A loop of one's own on one rank: what is refused, hand-computed steps, and what users bring."""

import contextlib
import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpitrain  # noqa: E402
from mpitrain.__main__ import main  # noqa: E402
from mpitrain.api.loop.module import FlatModule  # noqa: E402
from mpitrain.config import load  # noqa: E402
from mpitrain.errors import BadInput  # noqa: E402
from mpitrain.report.records import NUMBER, TYPES  # noqa: E402

ALGORITHMS = ["allreduce", "block-momentum", "easgd", "easgd-sync", "sparse-delta"]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run folders go to a temporary folder."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    yield


def sgd(model: nn.Module, **options: float) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


@pytest.mark.parametrize(
    ("algorithm", "keys", "line"),
    [
        ("eamsgd", {}, r"algorithm = 'eamsgd': .* x \+ δv.*; easgd with a momentum optimizer fits"),
        ("asgd", {}, r"algorithm = 'asgd': .* server.*; easgd, or allreduce, fits"),
        ("hybrid", {}, "algorithm = 'hybrid': .*; allreduce fits"),
        ("allreduces", {}, r"algorithm = 'allreduces': unknown; .*allreduce"),
        ("easgd", {"tau": 0}, "algorithm.tau: Expected `int` >= 1"),
        ("easgd", {"tua": 3}, "unknown key algorithm.tua; the nearest known is algorithm.tau"),
        ("easgd", {"alpha": 0.1, "rho": 1.0}, "algorithm.alpha, algorithm.beta, algorithm.rho: give one of them"),
        ("easgd", {"order": "round-robin"}, "algorithm.order: not in a loop of one's own"),
        ("sparse-delta", {"preset": "strom2015"}, "algorithm.preset: not in a loop of one's own"),
        ("sparse-delta", {"threshold": 1e-9}, r"algorithm.threshold: .* is 0\.0669 units"),
        ("allreduce", {"momentum": 0.5}, "algorithm.momentum: not in a loop of one's own"),
        ("block-momentum", {"buffers": "averaged"}, "algorithm.buffers = 'averaged': the optimizer is yours"),
    ],
)
def test_what_does_not_fit(algorithm: str, keys: dict[str, Any], line: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(BadInput, match=line), mpitrain.distribute(model, sgd(model), algorithm, **keys):
        pass


def test_a_folder_that_is_there_is_refused_by_what_a_loop_has() -> None:
    Path("run").mkdir()
    model = nn.Linear(2, 2)
    line = "^run: is there already; give another out, also where ranks.load goes on$"
    with pytest.raises(BadInput, match=line), mpitrain.distribute(model, sgd(model), out="run"):
        pass


def test_shares_within_each_other_are_refused() -> None:
    """The outer one's place in the order of samples would be lost. One that was left early may still be held."""
    model, data = nn.Linear(2, 2), [torch.zeros(3, 2)] * 4
    line = r"^ranks\.share: another one began within this one's loop; take one after the other$"
    with pytest.raises(BadInput, match=line), mpitrain.distribute(model, sgd(model)) as ranks:
        left = ranks.share(data)
        next(left)
        assert len([*ranks.share(data)]) == 4 and ranks.epoch == 2
        for _ in ranks.share(data):
            [*ranks.share(data)]


def test_a_batch_without_samples_that_is_left() -> None:
    """Its gradient is zero, and that of no other batch: the loop over it may still be held."""
    model = nn.Linear(2, 2)
    with mpitrain.distribute(model, sgd(model), "easgd") as ranks:
        left = ranks.share([torch.zeros(0, 2)])
        model(next(left)).sum().backward()
        assert ranks.weight == 0 and not model.bias.grad.any()
        for batch in ranks.share([torch.zeros(3, 2)]):
            model(batch).sum().backward()
            assert ranks.weight == 1 and (model.bias.grad == 3).all()
        left = ranks.share([torch.zeros(0, 2)])
        next(left)
    model(torch.zeros(1, 2)).sum().backward()
    assert (model.bias.grad == 4).all()


def test_a_rate_for_each_group_has_no_unit() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 1.0}], 0.1)
    with (
        pytest.raises(BadInput, match="SlowMo"),
        mpitrain.distribute(model, optimizer, "block-momentum", preset="slowmo"),
    ):
        pass
    optimizer.param_groups[1]["lr"] = 0.1
    with (
        pytest.raises(BadInput, match="SlowMo"),
        mpitrain.distribute(model, optimizer, "block-momentum", preset="slowmo", tau=1) as ranks,
    ):
        for _ in ranks.share([torch.ones(1, 2)] * 3):
            optimizer.param_groups[1]["lr"] = 0.05  # a schedule changes the rate of this group alone


class Wrapper(torch.optim.Optimizer):
    """As those of accelerate and of Lookahead, without the constructor of its class."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups


def test_other_models_and_optimizers() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    for given, optimizer, line in (
        (model, sgd(other), "optimizer: has a parameter that is not the model's"),
        (copy.deepcopy(model).half(), None, "model: weight is float16, not float32"),
        (copy.deepcopy(model).requires_grad_(False), None, "model: has no parameter to train"),
        (nn.Sequential(nn.LazyLinear(3)), None, "model: 0.weight has no shape yet; call the module once"),
        (nn.EmbeddingBag(5, 2, sparse=True), None, "sparse gradients"),
        (3, sgd(model), "model: a int, not a torch.nn.Module"),
        (model, 3, "optimizer: a int, not a torch.optim.Optimizer"),
        (model, Wrapper(sgd(model)), "optimizer: a Wrapper, whose steps cannot be seen; give the one that it wraps"),
    ):
        optimizer = sgd(given) if optimizer is None else optimizer
        with pytest.raises(BadInput, match=line), mpitrain.distribute(given, optimizer, "allreduce"):
            pass


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"algorithm": 3}, "algorithm = 3: unknown; known: allreduce, "),
        ({"algorithm": ["easgd"]}, r"algorithm = \['easgd'\]: unknown"),
        ({"seed": -1}, "seed = -1: expected a whole number"),
        ({"seed": 1.5}, "seed = 1.5: expected a whole number"),
        ({"out": 3}, "out = 3: expected the path of a folder"),
        ({"deadline": -1}, "deadline = -1: expected seconds"),
        ({"deadline": float("nan")}, "deadline = nan: expected seconds"),
        ({"deadline": None}, "deadline = None: expected seconds"),
    ],
)
def test_arguments_of_another_kind(arguments: dict[str, Any], line: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(BadInput, match=line), mpitrain.distribute(model, sgd(model), **arguments):
        pass


def test_numbers_of_numpy_are_numbers() -> None:
    model = nn.Linear(2, 2)
    with mpitrain.distribute(model, sgd(model), "easgd", tau=np.int64(3), alpha=np.float32(0.25), out="run"):
        pass
    told = load(Path("run/config.toml"), []).algorithm
    assert (told.tau, told.alpha) == (3, 0.25)


def test_two_at_once_and_one_after_the_other() -> None:
    model = nn.Linear(2, 2)
    with (
        mpitrain.distribute(model, sgd(model), "allreduce"),
        pytest.raises(BadInput, match="another block is open"),
        mpitrain.distribute(model, sgd(model)),
    ):
        pass
    with mpitrain.distribute(model, sgd(model), "easgd") as ranks:
        assert ranks.is_first and (ranks.rank, ranks.size) == (0, 1)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda model, optimizer: optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()}),
            "^optimizer: has a",
        ),
        (
            lambda model, optimizer: model.load_state_dict(model.state_dict(), assign=True),
            "^model: weight is another tensor than at the start",
        ),
    ],
)
def test_what_changes_within_the_block(change: Callable[..., Any], line: str) -> None:
    """Parameters that no algorithm keeps together on the ranks would be trained on."""
    model = nn.Linear(2, 2)
    optimizer = sgd(model)
    with pytest.raises(BadInput, match=line), mpitrain.distribute(model, optimizer, "allreduce") as ranks:
        for _ in ranks.share([torch.zeros(3, 2)] * 2):
            change(model, optimizer)


@pytest.mark.parametrize("entered", [False, True])
def test_calls_outside_of_the_block(entered: bool) -> None:
    """Before it nothing is there yet; after it the method's windows are gone, and nothing is trained."""
    model = nn.Linear(2, 2)
    ranks = mpitrain.distribute(model, sgd(model), "easgd")
    if entered:
        with ranks:
            pass
        assert ranks.mean(3.0) == 3
    for call, make in {
        "share": lambda: next(ranks.share([torch.zeros(3, 2)])),
        "save": lambda: ranks.save("kept"),
        "load": lambda: ranks.load("kept"),
    }.items():
        with pytest.raises(BadInput, match=rf"^ranks\.{call}: outside of its with block"):
            make()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_after_an_exception_all_is_as_before(algorithm: str) -> None:
    """Within the block: a second one works, and the optimizer and the module work without any."""
    model = nn.Linear(2, 1)
    optimizer = sgd(model)

    def train(batches: Any, fault: bool = False) -> None:
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            if fault:
                raise KeyError("mine")
            optimizer.step()

    data = [torch.randn(3, 2) for _ in range(5)]
    with pytest.raises(KeyError, match="mine"), mpitrain.distribute(model, optimizer, algorithm, out="1") as ranks:
        train(ranks.share(data), fault=True)
    train(data)
    with mpitrain.distribute(model, optimizer, algorithm, out="2") as ranks:
        train(ranks.share(data))
    train(data)
    assert json.loads(Path("2/summary.json").read_text())["samples"] == 15


def test_a_loop_that_is_left_counts_its_epoch() -> None:
    """The next one has another order."""
    model = nn.Linear(1, 1)
    first = []
    with mpitrain.distribute(model, sgd(model), "allreduce") as ranks:
        for _ in range(3):
            for batch in ranks.share(DataLoader(torch.arange(40), batch_size=40, shuffle=True)):
                first.append(tuple(batch.tolist()))
                break
    assert len(set(first)) == 3


def test_statistics_measured_anew() -> None:
    """By PyTorch's function, as the guide has it: those of the averaged model."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer, inputs = sgd(model), torch.randn(64, 2)
    loader = DataLoader(TensorDataset(inputs), batch_size=16)
    with mpitrain.distribute(model, optimizer, "block-momentum", tau=2) as ranks:
        for (batch,) in ranks.share(loader):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    torch.optim.swa_utils.update_bn(loader, model)
    torch.testing.assert_close(model[1].running_mean, model[0](inputs).mean(0))


def test_steps_without_a_batch() -> None:
    """Would put the ranks apart without a word."""
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    with (
        pytest.raises(BadInput, match=r"optimizer\.step: no batch"),
        mpitrain.distribute(model, optimizer, "easgd"),
    ):
        optimizer.step()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parameters_that_are_loaded_within_the_block(algorithm: str) -> None:
    """The model that an algorithm keeps beside them would not have them; the momentum took them for a move."""
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    with contextlib.ExitStack() as stack:
        if algorithm != "allreduce":
            line = "model: its parameters were changed within the block, before the first batch"
            stack.enter_context(pytest.raises(BadInput, match=line))
        ranks = stack.enter_context(mpitrain.distribute(model, sgd(model), algorithm))
        model.load_state_dict(other.state_dict())
        next(ranks.share([torch.ones(1, 2)]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("loaded", [False, True])
def test_parameters_that_are_loaded_after_the_last_batch(
    algorithm: str, loaded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as the best ones. All algorithms but allreduce end the block with a model of their own, and warn of it."""
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = sgd(model)
    with mpitrain.distribute(model, optimizer, algorithm) as ranks:
        for x in ranks.share([torch.ones(1, 2)] * 12):
            model(x).sum().backward()
            optimizer.step()
            with ranks.model():
                pass
        with ranks.model():
            pass
        if loaded:
            model.load_state_dict(other.state_dict())
    line = "warning: parameters were set after the last batch, as by load_state_dict, and the block ends with"
    assert (line in capsys.readouterr().err) is (loaded and algorithm != "allreduce")
    assert torch.equal(model.weight, other.weight) is (loaded and algorithm == "allreduce")


def test_steps_of_the_model_that_is_evaluated() -> None:
    """Would be undone without a word."""
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    line = r"within ranks\.model\(\), where the module has other parameters"
    with mpitrain.distribute(model, optimizer, "block-momentum", tau=2) as ranks:
        with ranks.model(), pytest.raises(BadInput, match=rf"^ranks\.share: {line}"):
            next(ranks.share([torch.ones(1, 2)]))
        for x in ranks.share([torch.ones(1, 2)]):
            model(x).sum().backward()
            with ranks.model(), pytest.raises(BadInput, match=rf"^optimizer\.step: {line}"):
                with ranks.model():
                    pass
                optimizer.step()


@pytest.mark.parametrize("algorithm", ["easgd", "easgd-sync"])
def test_elastic_averaging_by_hand(algorithm: str) -> None:
    """Algorithm 1 of the EASGD paper with τ = 2, α = 0.4 and a momentum optimizer, on ½(x − s)²."""
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = sgd(model, momentum=0.5)
    samples = [1.0, -2.0, 3.0, 0.5, 2.5]
    x = centre = model.weight.item()
    v = 0.0
    with mpitrain.distribute(model, optimizer, algorithm, tau=2, alpha=0.4) as ranks:
        for t, (s,) in enumerate(ranks.share(DataLoader(TensorDataset(torch.tensor(samples).double())))):
            optimizer.zero_grad()
            (0.5 * (model(torch.ones(1, 1).double()) - s) ** 2).sum().backward()
            optimizer.step()
            gradient = x - samples[t]
            if t % 2 == 0:
                d = 0.4 * (x - centre)
                x, centre = x - d, centre + d
            v = 0.5 * v + gradient
            x -= 0.1 * v
            assert model.weight.item() == pytest.approx(x, rel=1e-12)
        with ranks.model() as kept:
            assert kept.weight.item() == pytest.approx(centre, rel=1e-12)
        assert model.weight.item() == pytest.approx(x, rel=1e-12)
    assert model.weight.item() == pytest.approx(centre, rel=1e-12)


@pytest.mark.parametrize("algorithm", ["easgd", "easgd-sync"])
@pytest.mark.parametrize(("batches", "moves"), [(4, False), (5, True)])
def test_a_loop_shorter_than_a_period(
    algorithm: str, batches: int, moves: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The centre stays where it was, which is said."""
    model = nn.Linear(2, 1)
    optimizer, start = sgd(model), model.weight.tolist()
    with mpitrain.distribute(model, optimizer, algorithm, tau=4) as ranks:
        for x in ranks.share([torch.ones(1, 2)] * batches):
            model(x).sum().backward()
            optimizer.step()
    line = f"warning: algorithm.tau = 4: the loop took {batches} batches, which moved no centre"
    assert (line in capsys.readouterr().err) is not moves
    assert (model.weight.tolist() != start) is moves


def test_block_momentum_by_hand() -> None:
    """Θ ← Θ + v with v ← μv + Δ after every third step, and with what is left of μ after the two at the end."""
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = sgd(model)
    theta = x = model.weight.item()
    v = 0.0
    with mpitrain.distribute(model, optimizer, "block-momentum", tau=3, momentum=0.6) as ranks:
        for t, s in enumerate(ranks.share([torch.tensor([float(k)]).double() for k in range(5)])):
            optimizer.zero_grad()
            (0.5 * (model(torch.ones(1, 1).double()) - s) ** 2).sum().backward()
            optimizer.step()
            x -= 0.1 * (x - t)
            if t == 2:
                v = 0.6 * v + x - theta
                theta += v
                x = theta
    v = 0.6 * 2 / 3 * v + x - theta
    assert model.weight.item() == pytest.approx(theta + v, rel=1e-12)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_skipped_step_keeps_the_clock(algorithm: str) -> None:
    """A GradScaler that finds an infinite gradient leaves out the step; the exchange takes effect all the same."""
    model = nn.Linear(4, 2)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=4.0)
    keys = {} if algorithm in ("allreduce", "sparse-delta") else {"tau": 2}
    with mpitrain.distribute(model, optimizer, algorithm, **keys) as ranks:
        for t, inputs in enumerate(ranks.share([torch.randn(3, 4) for _ in range(6)])):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(inputs).float().square().mean()
            scaler.scale(out * (float("inf") if t == 2 else 1.0)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert all(bool(p.isfinite().all()) for p in model.parameters())


class Tied(nn.Module):
    """An embedding that is the output, too, beside a frozen part and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.frozen = nn.Embedding(7, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.out(self.frozen(self.norm(self.embedding(tokens))))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tied_and_frozen_parameters(algorithm: str) -> None:
    model = Tied()
    frozen, optimizer = model.frozen.weight.clone(), torch.optim.AdamW(model.parameters(), 0.05)
    tokens = torch.randint(7, (64,))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
    first = nn.functional.cross_entropy(model(tokens), tokens).item()
    with mpitrain.distribute(model, optimizer, algorithm) as ranks:
        for _ in range(8):
            for batch in ranks.share(DataLoader(tokens, batch_size=32, shuffle=True)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch), batch).backward()
                optimizer.step()
                scheduler.step()
    assert model.out.weight is model.embedding.weight and bool((model.frozen.weight == frozen).all())
    assert nn.functional.cross_entropy(model(tokens), tokens).item() < 0.8 * first


def test_an_expanded_buffer() -> None:
    """One element stands for many, into which nothing can be copied; a frozen parameter may be one, too."""
    model = nn.Linear(4, 2)
    model.register_buffer("mask", torch.arange(4.0).expand(2, 4))
    model.register_parameter("scale", nn.Parameter(torch.ones(1).expand(3), requires_grad=False))
    with mpitrain.distribute(model, sgd(model), "allreduce") as ranks:
        ranks.save("kept")
        model.mask.zero_()
        ranks.load("kept")
    assert model.mask.tolist() == [[0, 1, 2, 3]] * 2 and model.scale.tolist() == [1, 1, 1]


def test_its_run_folder_is_one_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    with mpitrain.distribute(model, optimizer, "easgd", out="mine", tau=3) as ranks:
        for epoch in range(2):
            for batch in ranks.share(DataLoader(torch.randn(20, 2), batch_size=4)):
                optimizer.zero_grad()
                out = model(batch).square().mean()
                out.backward()
                optimizer.step()
            ranks.log(test_error=0.5 / (epoch + 1), train_loss=out)
    records = [json.loads(line) for line in Path("mine/metrics.jsonl").read_text().splitlines()]
    assert [record["event"] for record in records] == ["start", "evaluate", "evaluate", "end"]
    assert [record["samples"] for record in records] == [0, 20, 40, 40] and records[2]["test_error"] == 0.25
    assert json.loads(Path("mine/summary.json").read_text())["exit_reason"] == "finished"
    assert main(["report", "mine", "--out", "page.html"]) == 0, capsys.readouterr().err
    assert "25" in Path("page.html").read_text()
    ranks.log(test_error=0.125)  # of the model that the block has ended with
    summary = json.loads(Path("mine/summary.json").read_text())
    assert (summary["test_error"], summary["samples"], summary["exit_reason"]) == (0.125, 40, "finished")


def test_names_of_the_records_own() -> None:
    """Are refused, with those that a report takes for something else; figures of its own are the user's to give."""
    model = nn.Linear(2, 1)
    with mpitrain.distribute(model, sgd(model), "allreduce", out="mine") as ranks:
        ranks.log(gradient_norm=2.0)
    records = [json.loads(line) for line in Path("mine/metrics.jsonl").read_text().splitlines()]
    own = {name for record in records for name in record} - {"gradient_norm"}
    for name in own | {name for name, (kind, _) in TYPES.items() if kind is not NUMBER[0]}:
        with (
            pytest.raises(BadInput, match=f"ranks.log: {name}: in the run's own records"),
            mpitrain.distribute(model, sgd(model), "allreduce") as ranks,
        ):
            ranks.log(test_error=0.5, **{name: 7})


def test_what_is_no_number() -> None:
    """Is named."""
    model = nn.Linear(2, 1)
    for value in ("text", None, torch.zeros(2)):
        with (
            pytest.raises(BadInput, match=r"^ranks.log: accuracy: .*(convert|argument)"),
            mpitrain.distribute(model, sgd(model), "allreduce") as ranks,
        ):
            ranks.log(test_error=0.5, accuracy=value)


def test_the_example_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    guide = Path(__file__).resolve().parents[3] / "docs" / "loop.md"
    _, program, _ = re.split("```(?:python)?\n", guide.read_text(encoding="utf-8"), maxsplit=2)
    exec(compile(program, guide, "exec"), {})
    epochs = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(epochs) == 4 and float(epochs[-1].split()[-1].rstrip("%")) < 15


def test_a_batch_without_samples_adds_nothing_to_what_was_accumulated() -> None:
    """Its backward adds zeros: what earlier batches of the step have added stays."""
    model = nn.Linear(3, 2)
    flat = FlatModule(model, sgd(model))
    model(torch.ones(4, 3)).sum().backward()
    with flat.gradients_through(torch.zeros_like):
        (model(torch.ones(4, 3)).sum() * float("nan")).backward()
    assert (model.weight.grad == 4).all() and (model.bias.grad == 4).all()
    model(torch.ones(1, 3)).sum().backward()
    assert (model.weight.grad == 5).all()
