"""`ranks.save` and `ranks.load`: the bits of an uninterrupted training, other numbers of ranks, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import mpitrain  # noqa: E402
from mpitrain.checkpoint.files import MANIFEST, write_manifest  # noqa: E402
from mpitrain.errors import BadInput  # noqa: E402
from mpitrain.files import exchanged  # noqa: E402

LOADED = ("torch._dynamo", "mpitrain.api.loop")
PROGRAM = str(Path(__file__).with_name("saved.py"))
IN_STEP = ["allreduce", "block-momentum", "easgd-sync"]
ALL = [*IN_STEP, "easgd", "sparse-delta"]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run folders and saves go to a temporary folder."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    yield


#: By training and rank: the hashes of the model and of the optimizer's state.
Hashes = dict[tuple[str, int], list[str]]


def told(ended: Any) -> dict[str, dict[str, Hashes]]:
    """By mode, then by when."""
    assert ended.status == 0, ended.err
    found: dict[str, dict[str, Hashes]] = {}
    for line in ended.out.splitlines():
        mode, when, name, rank, *hashes = json.loads(line)
        found.setdefault(mode, {}).setdefault(when, {})[name, rank] = hashes
    return found


@pytest.mark.parametrize(
    ("ranks", "algorithms"), [(2, [*IN_STEP, "sparse-delta in step"]), (1, ["easgd", "sparse-delta"])]
)
def test_the_bits_of_a_training_without_a_break(launch: Callable[..., Any], ranks: int, algorithms: list[str]) -> None:
    """After an epoch, and within one: on from a save in a new process, with Adam and with momentum."""
    before = told(launch(ranks, "straight,first", "0,1.3", *algorithms, program=(PROGRAM,)))
    then = told(launch(ranks, "then", "0,1.3", *algorithms, program=(PROGRAM,)))["then"]
    straight, first = before["straight"], before["first"]
    assert then["end"] == straight["end"] and len(straight["end"]) == 2 * 2 * ranks * len(algorithms)
    assert then["save"] == first["save"]
    assert all(first["end"][each] != straight["end"][each] for each in straight["end"])


def test_another_number_of_ranks(launch: Callable[..., Any]) -> None:
    """Has the algorithm's model, and rank r the optimizer's state of rank r modulo 2."""
    first = told(launch(2, "first", "0", *ALL, program=(PROGRAM,)))["first"]["save"]
    for ranks in (1, 3):
        ended = launch(ranks, "then", "0", *ALL, program=(PROGRAM,))
        for (name, rank), hashes in told(ended)["then"]["save"].items():
            assert hashes == first[name, rank % 2]
        assert ended.err.count(f"saved by 2 ranks, loaded by {ranks}") == 2 * len(ALL)


# ---- one rank


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Any) -> None:
    for batch in ranks.share(DataLoader(torch.randn(20, 2), batch_size=4)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 0.1)


def saved(name: str = "kept", algorithm: str = "block-momentum", model: nn.Module | None = None) -> Path:
    model = model or network()
    optimizer = adam(model)
    with mpitrain.distribute(model, optimizer, algorithm) as ranks:
        trained(model, optimizer, ranks)
        ranks.save(name)
    return Path(name)


def refused(model: nn.Module, optimizer: torch.optim.Optimizer, line: str, algorithm: str = "block-momentum") -> None:
    """A load ends with the line, and changes nothing."""
    with mpitrain.distribute(model, optimizer, algorithm) as ranks:
        before = [p.clone() for p in (*model.parameters(), *model.buffers())]
        drawn = torch.get_rng_state()
        with pytest.raises(BadInput, match=line):
            ranks.load("kept")
        assert all(bool((a == b).all()) for a, b in zip(before, (*model.parameters(), *model.buffers()), strict=True))
        assert not optimizer.state and bool((torch.get_rng_state() == drawn).all()) and ranks.epoch == 0


def test_another_module_algorithm_or_optimizer() -> None:
    saved()
    model = network()
    other = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
    refused(other, adam(other), r"state\.h5: saved of another module: it has 0\.weight \[3, 2\], this one .* \[4, 2\]")
    refused(model, adam(model), r"state\.h5: algorithm is block-momentum, not allreduce", "allreduce")
    refused(model, torch.optim.SGD(model.parameters(), 0.1), r"state\.h5: optimizer: saved of Adam on .* is SGD on")
    turned = torch.optim.Adam(list(model.parameters())[::-1], 0.1)
    refused(model, turned, r"optimizer: saved of Adam on 0\.weight, .*, this one is Adam on 1\.bias,")
    model.register_buffer("more", torch.zeros(2))
    refused(model, adam(model), r"state\.h5: module: saved of another one, as more tells")


@pytest.mark.parametrize("file", ["state.h5", MANIFEST])
@pytest.mark.parametrize("fault", ["cut", "changed", "gone"])
def test_a_damaged_save(file: str, fault: str) -> None:
    path = saved() / file
    content = path.read_bytes()
    match fault:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "changed":
            path.write_bytes(content[:90] + bytes([content[90] ^ 1]) + content[91:])
        case "gone":
            path.unlink()
    model = network()
    refused(model, adam(model), "kept: (state.h5 does not match its checksum|torn)")


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("theta", "theta is not finite"),
        ("kept/optimizer/state/0/exp_avg", "optimizer/state/0/exp_avg is not finite"),
    ],
)
def test_numbers_that_are_not_finite(key: str, line: str) -> None:
    """In a whole file."""
    folder = saved()
    with h5py.File(folder / "state.h5", "r+") as file:
        file[key][0] = float("nan")
    write_manifest(folder)
    model = network()
    refused(model, adam(model), rf"kept/state\.h5: {line}")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"epoch": 1', '"epoch": -1', "Expected `int` >= 0"),
        ('"shape": [3, 2]', '"shape": [3, 3]', r"has 6 elements, expected \[3, 3\]"),
        ('"kind": "tuple"', '"kind": "set"', "a state that is none"),
        ('"name": "random/torch"', '"name": "random/gone"', "random/gone"),
        ('"MT19937"', '"other"', "kept/state.h5: "),
    ],
)
def test_other_numbers(old: str, new: str, line: str) -> None:
    folder = saved()
    with h5py.File(folder / "state.h5", "r+") as file:
        assert old in file.attrs["numbers"]
        file.attrs["numbers"] = file.attrs["numbers"].replace(old, new)
    write_manifest(folder)
    model = network()
    refused(model, adam(model), line)


def test_a_whole_period_comes_before_the_first_average_of_another_number_of_ranks() -> None:
    """They start from the centre, and an average after fewer steps would move it by the whole momentum."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)

    def centre(ranks: Any, batches: int) -> float:
        for _ in ranks.share([torch.zeros(1)] * batches):
            optimizer.zero_grad()
            (-model.weight.sum()).backward()
            optimizer.step()
        with ranks.model():
            return model.weight.item()

    keys = {"tau": 4, "momentum": 0.5}
    with mpitrain.distribute(model, optimizer, "block-momentum", **keys) as ranks:
        assert centre(ranks, 5) == 4
        ranks.save("kept")
    of_two_ranks()
    with mpitrain.distribute(model, optimizer, "block-momentum", **keys) as ranks:
        ranks.load("kept")
        assert centre(ranks, 3) == 4
        assert centre(ranks, 1) == 4 + (4 / 2 + 4)


def of_two_ranks() -> None:
    """Make the save one by two ranks."""
    with h5py.File("kept/state.h5", "r+") as file:
        file.attrs["numbers"] = file.attrs["numbers"].replace('"ranks": 1', '"ranks": 2')
    write_manifest(Path("kept"))


def test_within_an_epoch_by_another_number_of_ranks() -> None:
    """Their batches are others."""
    model = network()
    optimizer = adam(model)
    with mpitrain.distribute(model, optimizer, "block-momentum") as ranks:
        for _ in ranks.share([torch.zeros(1)] * 2):
            ranks.save("kept")
            break
    of_two_ranks()
    refused(model, optimizer, "saved within epoch 0 by 2 ranks, whose batches are not those of 1;")


def test_within_an_epoch_with_another_seed() -> None:
    """Its order is another one; between two epochs it may be."""
    model = network()
    optimizer = adam(model)
    with mpitrain.distribute(model, optimizer, "block-momentum", seed=7) as ranks:
        for _ in ranks.share([torch.zeros(1)] * 2):
            ranks.save("kept")
            break
    refused(model, optimizer, "saved within epoch 0 with seed=7, whose batches are not those of seed=1;")
    with mpitrain.distribute(model, optimizer, "block-momentum", seed=7) as ranks:
        ranks.load("kept")
        assert sum(1 for _ in ranks.share([torch.zeros(1)] * 2)) == 1
        ranks.save("kept")
    with mpitrain.distribute(model, optimizer, "block-momentum", seed=3) as ranks:
        ranks.load("kept")


def test_the_threshold_is_what_the_loop_asks_for_now() -> None:
    """Where it is not adapted; a step by 0.3 stays in the residual of one with 0.5."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for threshold, moved in ((0.5, 0.0), (0.25, 0.25)):
        nn.init.zeros_(model.weight)
        keys = {"threshold": threshold, "target_density": 0, "bits": 1}
        with mpitrain.distribute(model, optimizer, "sparse-delta", **keys) as ranks:
            if moved:
                ranks.load("kept")
            else:
                ranks.save("kept")
            for _ in ranks.share([torch.zeros(1)]):
                optimizer.zero_grad()
                (-model.weight.sum()).backward()
                optimizer.step()
        assert model.weight.item() == moved


def test_what_cannot_be_saved() -> None:
    model = network()
    optimizer = adam(model)
    with mpitrain.distribute(model, optimizer, "block-momentum") as ranks:
        Path("mine").mkdir()
        Path("mine/thesis").write_text("dear")
        for path, line in (("mine", "mine: is there already, and no save"), (".", "names no folder")):
            with pytest.raises(BadInput, match=line):
                ranks.save(path)
        with ranks.model(), pytest.raises(BadInput, match=r"ranks\.save: within ranks\.model\(\)"):
            ranks.save("kept")
        optimizer.param_groups[0]["mine"] = {1, 2}
        with pytest.raises(BadInput, match="optimizer/param_groups/0/mine: a save cannot hold this set"):
            ranks.save("kept")
        del optimizer.param_groups[0]["mine"]
        for _ in ranks.share([torch.zeros(1)] * 2):
            with pytest.raises(BadInput, match="within an epoch"):
                ranks.load("kept")
        with pytest.raises(BadInput, match="kept: no such checkpoint"):
            ranks.load("kept")
        ranks.save("kept")
        Path("kept/thesis").write_text("dear")
        with pytest.raises(BadInput, match="kept: holds thesis beside a save"):
            ranks.save("kept")
        with torch.no_grad():
            model[0].weight[0, 0] = float("inf")
        with pytest.raises(BadInput, match=r"ranks\.save: rank 0: x is not finite"):
            ranks.save("another")
        with torch.no_grad():
            model[0].weight[0, 0] = 0.0
    assert not Path("another").exists() and not list(Path().glob(".writing-*"))


class Extra(nn.Linear):
    """With a state of its own, and a buffer that is in no state_dict."""

    told = 0

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def get_extra_state(self) -> dict[str, Any]:
        return {"told": self.told, "table": torch.arange(3)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state["table"].tolist() == [0, 1, 2]
        self.told = state["told"]


def test_a_trainer_that_counts_its_batches() -> None:
    """It asks for none after the last; the epoch is over once what `share` returned is closed."""
    model, loader = network(), DataLoader(torch.randn(8, 2), batch_size=4)
    with mpitrain.distribute(model, adam(model), "allreduce") as ranks:
        batches = ranks.share(loader)
        for _ in range(len(loader)):
            model(next(batches)).sum().backward()
        batches.close()
        ranks.save("kept")
    again = network()
    with mpitrain.distribute(again, adam(again), "allreduce") as ranks:
        ranks.load("kept")
        assert (ranks.epoch, len(list(ranks.share(loader)))) == (1, 2)


def test_what_modules_keep() -> None:
    model = Extra()
    model.told = 7
    model.seen += 5
    saved(model=model)
    again = Extra()
    with mpitrain.distribute(again, adam(again), "block-momentum") as ranks:
        ranks.load("kept")
        assert ranks.epoch == 1 and (again.told, again.seen.item()) == (7, 5)


def test_tables_that_forward_enlarges() -> None:
    """A save does not depend on how long they were, if they are not in the module's state_dict."""
    for persistent in (False, True):
        model = network()
        model.register_buffer("table", torch.zeros(1), persistent)
        with mpitrain.distribute(model, adam(model), "allreduce") as ranks:
            model.table = torch.zeros(5)
            model.register_buffer("mask", torch.zeros(2), persistent)
            ranks.save("kept")
        again = network()
        again.register_buffer("table", torch.ones(1), persistent)
        with (
            pytest.raises(BadInput, match="as mask tells") if persistent else nullcontext(),
            mpitrain.distribute(again, adam(again), "allreduce") as ranks,
        ):
            ranks.load("kept")
        assert again.table.tolist() == [1.0]


def test_a_learning_rate_of_numpy() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with mpitrain.distribute(model, optimizer, "allreduce") as ranks:
        optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"] = np.float64(0.1), np.float32(0.5)
        ranks.save("kept")
        optimizer.param_groups[0]["lr"] = 0.0
        ranks.load("kept")
        assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.1, 0.5)


def test_gradients_that_are_accumulated() -> None:
    model = network()
    optimizer = adam(model)
    with mpitrain.distribute(model, optimizer, "allreduce") as ranks:
        for batch in ranks.share(DataLoader(torch.randn(8, 2), batch_size=4)):
            with ranks.accumulate():
                model(batch).square().mean().backward()
            with pytest.raises(BadInput, match="gradients that were accumulated"):
                ranks.save("kept")
            break


def test_a_save_always_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that asks whether there is one finds it, also if the next one was killed between two renames."""
    folder, seen, rename = saved(), list[bool](), Path.rename
    others = Path("one"), Path("other")
    for other in others:
        other.mkdir()
    if not exchanged(*others):
        pytest.skip("two folders cannot change their names at one moment here")

    def watched(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        seen.append((folder / "manifest.json").is_file())
        return moved

    monkeypatch.setattr(Path, "rename", watched)
    model = network()
    with mpitrain.distribute(model, adam(model), "block-momentum") as ranks:
        ranks.load(folder)
        ranks.save(folder)
    assert seen and all(seen) and not [*Path().glob(".writing-*"), *Path().glob("*~")]


def test_records_go_on() -> None:
    saved()
    model = network()
    with mpitrain.distribute(model, adam(model), "block-momentum", out="run") as ranks:
        ranks.load("kept")
        ranks.log(test_error=0.5)
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [(each["samples"], each.get("epoch")) for each in records] == [(0, None), (20, 1), (20, 1)]


#: Saves without end; the arguments are its own.
SAVING = """
import torch, mpitrain
model = torch.nn.Linear(300, 300)
with mpitrain.distribute(model, torch.optim.SGD(model.parameters(), 0.1), "allreduce") as ranks:
    while True:
        ranks.save("kept")
        print("saved", flush=True)
"""


def test_a_save_that_is_cut_short_is_none() -> None:
    """Whenever its process is killed, the last whole one can be loaded."""
    for patience in (0.0, 0.003, 0.011, 0.017):
        process = subprocess.Popen([sys.executable, "-c", SAVING], stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout is not None and process.stdout.readline() == b"saved\n"
        time.sleep(patience)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        model = nn.Linear(300, 300)
        with mpitrain.distribute(model, torch.optim.SGD(model.parameters(), 0.1), "allreduce") as ranks:
            ranks.load("kept")
            ranks.save("kept")  # clears what was left
        assert not list(Path().glob(".writing-*")) and not list(Path().glob("*~"))
