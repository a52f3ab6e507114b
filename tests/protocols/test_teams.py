"""Teams: ranks that share each minibatch of their leader, who alone exchanges anything with other teams."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from mpitrain.__main__ import main
from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.errors import BadInput
from mpitrain.flat import Layout, Parameter
from mpitrain.mpi import Transport
from mpitrain.mpi.team import Team
from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.team import Leading
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.queue import Work
from mpitrain.signals import STOPPED, Stop
from mpitrain.simulation.job import Job
from mpitrain.simulation.messages import ClusterNetwork, Link
from mpitrain.training.context import divide
from mpitrain.training.gradients import Learner
from tests.faults import Fault, program
from tests.leftovers import left_behind

PEERS = ("algorithm.name=sparse-delta", "training.learning_rate=0.0625", "algorithm.threshold=0.5")
KEYS = ("run.threads=1", "run.progress=none", "run.device=cpu", "training.seed=5", "algorithm.name=sparse-delta")
ROUND_ROBIN = "algorithm.order=round-robin"


class Exact:
    """A loss ½‖θ − mean input / 64‖² in two parts, whose sums over 2ⁿ samples do not round in float64."""

    drawing = False

    def __init__(self) -> None:
        self.layout = Layout([Parameter("x", (5,), ("constant", 1.0))])
        self.input_shape, self.classes, self.split = (1,), 2, 0

    def initial(self, seed: int, dtype: Any = np.float64) -> np.ndarray:
        """All ones."""
        return np.ones(5, dtype)

    def loss_and_gradient(self, theta, gradient, batch: Batch, draws=None, on_ready=None) -> float:
        """The loss and its gradient."""
        np.subtract(theta, batch.inputs.mean() / 64, out=gradient)
        for part in (slice(2, 5), slice(0, 2)):
            on_ready(part)
        return 0.5 * float(np.dot(gradient, gradient))


def trained(
    session_of: Callable[..., Any], ranks: int, team: int, *settings: str, sparse: bool = True, **how: Any
) -> list[Any]:
    """The sessions of simulated ranks in teams after a training on `Exact`."""

    def program(transport: Transport) -> Any:
        session = session_of(transport, *(PEERS if sparse else ()), *settings, network=Exact(), **how)
        if team > 1:
            session.team = Team(transport, divide(team, transport.node_leaders, session.has_master))
            session.members = [members[0] for members in session.team.all]
            if session.team.leads:
                how_to_learn = replace(session.config.training, dtype="float64")
                session.learner = Leading(session.team, session.network, session.learner.corpus, how_to_learn)
        PROTOCOLS[session.config.algorithm.protocol](session)
        transport.leave()
        return session

    job = Job[Any](ranks)
    sessions = job.run(program)
    assert left_behind(job) == []
    return sessions


def test_teams_are_neighbours_or_the_ranks_of_a_node() -> None:
    """In the order of their leaders; nodes may have their ranks in any order, and differ in number."""
    assert divide(2, [0, 0, 0, 0]) == [[0, 1], [2, 3]] and divide(1, [0, 0]) == [[0], [1]]
    assert divide("node", [0, 1, 0, 1, 0]) == [[0, 2, 4], [1, 3]]
    with pytest.raises(BadInput, match=r"run\.team = 2: 3 ranks cannot"):
        divide(2, [0, 0, 0])


def test_a_server_is_in_no_team() -> None:
    """The others of its node are."""
    assert divide(2, [0] * 5, True) == [[0], [1, 2], [3, 4]]
    assert divide("node", [0, 0, 0, 3, 3], True) == [[0], [1, 2], [3, 4]]
    with pytest.raises(BadInput, match=r"run\.team = 2: 3 ranks beside the server cannot"):
        divide(2, [0] * 4, True)


@pytest.mark.parametrize("per", ["minibatch", "sample"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_one_team_is_strom_s_pseudo_code_on_the_sum_of_its_ranks_gradients(
    session_of: Callable[..., Any], ranks: int, per: str
) -> None:
    """One residual, of the gradients summed over the ranks; all of them end with the leader's weights."""
    rate = 0.0625 / (4 if per == "sample" else 1)
    settings = ("training.minibatch=4", "training.epochs=3", f"training.rate_per={per}")
    sessions = trained(session_of, ranks, ranks, *settings, f"training.learning_rate={rate}")
    alone = trained(session_of, 1, 1, *settings, f"training.learning_rate={rate}")[0]
    targets = np.array(alone.learner.corpus.gathered).reshape(-1, 4).mean(axis=1) / 64
    weights, residual, tau, eta = np.ones(5), np.zeros(5), 0.5, 0.0625 / 4
    for target in targets:
        residual += 4 * (weights - target)
        message = np.where(residual > tau, 1, np.where(residual < -tau, -1, 0))
        residual -= tau * message
        weights -= eta * tau * message
    assert all(np.array_equal(session.state.theta, weights) for session in sessions) and len(targets) == 48
    assert np.array_equal(sessions[0].state.local["residual"], residual)
    assert [session.state.local for session in sessions[1:]] == [{}] * (ranks - 1)
    shares = [session.learner.corpus.gathered for session in sessions]
    assert [len(share) for share in shares] == [192 // ranks] * ranks
    assert Counter(chain(*shares)) == Counter(dict.fromkeys(range(64), 3))


def test_a_team_clips_the_gradient_of_all_its_ranks(session_of: Callable[..., Any]) -> None:
    """By hand: the shares' sum, not each share, is scaled to the norm."""
    settings = ("training.minibatch=4", "training.epochs=1", "training.clip_norm=0.75", "algorithm.threshold=0.125")
    alone = trained(session_of, 1, 1, *settings)[0]
    targets = np.array(alone.learner.corpus.gathered).reshape(-1, 4).mean(axis=1) / 64
    weights, residual, clipped = np.ones(5), np.zeros(5), 0
    for target in targets:
        norm = np.sqrt(5) * abs(weights[0] - target)
        clipped += norm > 0.75
        residual += 4 * (weights - target) * min(1, 0.75 / (norm + 1e-6))
        message = np.sign(residual) * (abs(residual) > 0.125)
        residual -= 0.125 * message
        weights -= 0.0625 / 4 * 0.125 * message
    assert 0 < clipped < len(targets) == 16
    for session in (alone, *trained(session_of, 2, 2, *settings), *trained(session_of, 4, 4, *settings)):
        np.testing.assert_allclose(session.state.theta, weights, rtol=1e-12)
    np.testing.assert_allclose(alone.state.local["residual"], residual, atol=1e-12)


@pytest.mark.parametrize("team", [2, 4])
def test_two_teams_are_two_ranks_to_the_bit(session_of: Callable[..., Any], team: int) -> None:
    """In round-robin order; also with stages that change the minibatch and the number of workers."""
    stages = "stages=[{at=0, workers=1}, {at=0.5, workers=2, minibatch=8}]"
    settings = ("training.minibatch=4", "training.epochs=2", ROUND_ROBIN, stages)
    flat = trained(session_of, 2, 1, *settings)
    teams = trained(session_of, 2 * team, team, *settings)
    assert {session.state.theta.tobytes() for session in teams} == {flat[0].state.theta.tobytes()}
    for one, leader in zip(flat, teams[::team], strict=True):
        assert leader.state.local["residual"].tobytes() == one.state.local["residual"].tobytes()
        assert leader.counters.trained_now == one.counters.trained_now
    told = [session.counters.summary() for session in (flat[0], teams[0])]
    assert told[0]["bytes_per_minibatch"] == told[1]["bytes_per_minibatch"] > 0
    steps = 32 // 4 + (128 - 32) // 8 // 2  # of leader 0: alone up to sample 32, then every other minibatch of 8
    assert teams[1].team.traffic.bytes_sent == (5 + 1) * 8 * steps  # five sums and a loss for each
    assert teams[1].transport.traffic.bytes_sent - teams[1].team.traffic.bytes_sent < 100  # that it has gone
    assert teams[0].team.traffic.bytes_received == (team - 1) * teams[1].team.traffic.bytes_sent
    assert 0 <= teams[0].bytes_exchanged() - flat[0].bytes_exchanged() < 200 * team  # what followers say at the end


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "downpour"])
@pytest.mark.parametrize("team", [2, 4])
def test_two_teams_beside_a_centre_are_two_workers_to_the_bit(
    session_of: Callable[..., Any], name: str, team: int
) -> None:
    """In round-robin order; x̃ is rank 0's, the leaders' x their own, and followers end with their leader's."""
    settings = (f"algorithm.name={name}", "algorithm.tau=3", "training.minibatch=4", "training.epochs=2", ROUND_ROBIN)
    flat = trained(session_of, 3, 1, *settings, sparse=False)
    teams = trained(session_of, 1 + 2 * team, team, *settings, sparse=False)
    assert teams[0].state.theta.tobytes() == flat[0].state.theta.tobytes()
    for one, leader in zip(flat[1:], teams[1::team], strict=True):
        assert {key: vector.tobytes() for key, vector in one.state.local.items()} == {
            key: vector.tobytes() for key, vector in leader.state.local.items()
        }
    shares = [len(session.learner.corpus.gathered) for session in teams[1:]]
    assert sum(shares) == 128 and shares[1:team] == [shares[1]] * (team - 1)
    assert [session.state.local for session in teams[2 : team + 1]] == [{}] * (team - 1)


def test_a_minibatch_smaller_than_its_team_is_served_once(session_of: Callable[..., Any]) -> None:
    """Ranks without a share give nothing: the weights are those of one rank."""
    settings = ("training.minibatch=2", "training.epochs=2")
    alone, team = trained(session_of, 1, 1, *settings)[0], trained(session_of, 4, 4, *settings)
    assert {session.state.theta.tobytes() for session in team} == {alone.state.theta.tobytes()}
    assert team[0].counters.trained_now == alone.counters.trained_now == 128


def simulated(job: Job[int], folder: Path, *keys: str, stops: list[Stop] | None = None) -> dict[str, Any]:
    """The summary of a training; nothing may be left under way."""
    options = TrainOptions(overrides=(*KEYS, *keys), out=folder)
    with threadpool_limits(1):
        ended = job.run(lambda transport: train_on(transport, options, stops[transport.rank] if stops else Stop()))
    assert set(ended) == {STOPPED if stops else 0} and left_behind(job) == []
    return dict(json.loads((folder / "summary.json").read_text()))


def test_teams_of_one_rank_are_no_teams_to_the_bit(tmp_path: Path) -> None:
    """Three nodes of a rank each."""
    keys = ("training.epochs=0.3", ROUND_ROBIN)
    flat = simulated(Job[int](3, nodes=[0, 1, 2]), tmp_path / "flat", *keys)
    teams = simulated(Job[int](3, nodes=[0, 1, 2]), tmp_path / "teams", *keys, "run.team=node")
    assert teams["parameters_sha256"] == flat["parameters_sha256"] and teams["workers"] == flat["workers"] == 3
    assert teams["bytes_sent_within_teams"] == 0 and "bytes_sent_within_teams" not in flat


@pytest.mark.parametrize("team", [2, 3, 4])
@pytest.mark.parametrize("name", ["sparse-delta", "easgd"])
def test_teams_that_share_memory_have_the_bits_of_those_by_messages(
    launch: Callable[..., Any], tmp_path: Path, name: str, team: int
) -> None:
    """The former are real ranks, the latter simulated ones, which replay them as well."""
    keys = (f"algorithm.name={name}", f"run.team={team}", "training.epochs=0.5", "training.minibatch=16", ROUND_ROBIN)
    ranks = (2 if team == 2 else 1) * team + (name == "easgd")
    by_messages = simulated(Job[int](ranks), tmp_path / "messages", *keys)
    words = [word for key in (*KEYS, *keys, "run.record_order=true", "run.device=cpu") for word in ("--set", key)]
    ended = launch(ranks, "--out", str(tmp_path / "memory"), *words)
    assert ended.status == 0, ended.err
    assert main(["simulate", "--replay", str(tmp_path / "memory"), "--out", str(tmp_path / "again")]) == 0
    shared = json.loads((tmp_path / "memory" / "summary.json").read_text())
    assert shared["parameters_sha256"] == by_messages["parameters_sha256"]
    assert shared["bytes_sent_within_teams"] < by_messages["bytes_sent_within_teams"] / 20
    assert (shared["samples"], shared["workers"]) == (719, 2 if team == 2 else 1)


def heavy(seed: int) -> Callable[[int, int], float]:
    """Seconds of gradients with a heavy tail."""
    random = np.random.default_rng(seed)
    return lambda rank, samples: 1e-4 * samples * float(random.pareto(1.2) + 0.1)


@pytest.mark.parametrize("order", ["free", "round-robin"])
def test_whatever_comes_when(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: str) -> None:
    """Nodes of 3, 2 and 1 ranks, and checkpoints: each sample is served once an epoch, and all replicas are one."""
    served, plain = Counter[tuple[int, int]](), Learner.load

    def load(learner: Learner, work: Work) -> Any:
        served.update((work.epoch, place) for place in range(work.start, work.start + work.count))
        return plain(learner, work)

    monkeypatch.setattr(Learner, "load", load)
    network = ClusterNetwork(Link(1e-4, 1e8), jitter=5e-3, seed=1)
    job = Job[int](6, network, nodes=[0, 1, 0, 2, 1, 0], seconds=heavy(1))
    keys = ("run.team=node", f"algorithm.order={order}", "training.epochs=2", "run.checkpoint_samples=1000")
    told = simulated(job, tmp_path / "run", *keys)
    assert served == Counter({(epoch, place): 1 for epoch in range(2) for place in range(1438)})
    assert told["samples"] == 2876 and told["replicas_identical"] and (told["ranks"], told["workers"]) == (6, 3)
    pieces = {path.name for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*/rank-*")}
    assert len(pieces) == 3  # of the leaders
    dense, steps = 4 * 38_282, told["messages_sent"] / 6
    assert 0 < told["bytes_sent"] - told["bytes_sent_within_teams"] < dense * steps / 20
    assert told["bytes_sent"] == told["bytes_received"]


@pytest.mark.parametrize("order", ["free", "round-robin"])
@pytest.mark.parametrize("name", ["sparse-delta", "easgd"])
def test_a_stop_request_to_a_follower_ends_the_training(tmp_path: Path, order: str, name: str) -> None:
    """After some time, whatever its leader is at."""
    ranks = 4 + (name == "easgd")
    stops = [Stop() for _ in range(ranks)]

    def seconds(rank: int, samples: int) -> float:
        stops[ranks - 1].flag |= job.scheduler.now > 0.3
        return 1e-4 * samples

    job = Job[int](ranks, ClusterNetwork(Link(1e-4, 1e8)), seconds=seconds)
    keys = (f"algorithm.name={name}", "run.team=2", f"algorithm.order={order}")
    told = simulated(job, tmp_path / "run", *keys, stops=stops)
    assert told["exit_reason"] == "stopped" and 0 < told["samples"] < 14380
    assert name == "easgd" or told["replicas_identical"]


def test_teams_beside_a_centre_are_resumed(tmp_path: Path) -> None:
    """Pieces of a checkpoint are the server's and the leaders'."""
    keys = ("algorithm.name=easgd", "run.team=2", ROUND_ROBIN, "training.minibatch=48", "run.evaluate_every=0")
    whole = simulated(Job[int](5), tmp_path / "whole", *keys, "training.epochs=2")
    simulated(Job[int](5), tmp_path / "cut", *keys, "training.epochs=1")
    options = TrainOptions(overrides=("training.epochs=2",), resume=tmp_path / "cut")
    with threadpool_limits(1):
        assert set(Job[int](5).run(lambda transport: train_on(transport, options, Stop()))) == {0}
    told = json.loads((tmp_path / "cut" / "summary.json").read_text())
    assert (told["samples"], told["workers"]) == (2876, 2) == (whole["samples"], whole["workers"])
    assert {path.name for path in (tmp_path / "cut" / "checkpoints").glob("*2876/rank-*")} == {
        f"rank-{rank:05d}.h5" for rank in (0, 1, 3)
    }


def test_a_resumed_run_of_teams_ends_with_the_bits_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """And single ranks take it up, with all of the residuals."""
    keys = ("run.team=2", ROUND_ROBIN, "training.minibatch=719", "run.evaluate_every=0")
    whole = simulated(Job[int](4), tmp_path / "whole", *keys, "training.epochs=2")
    simulated(Job[int](4), tmp_path / "cut", *keys, "training.epochs=1")
    with threadpool_limits(1):
        for ranks, more in ((4, ("training.epochs=2",)), (3, ("training.epochs=3", "run.team=1"))):
            options = TrainOptions(overrides=more, resume=tmp_path / "cut")
            assert set(Job[int](ranks).run(lambda transport: train_on(transport, options, Stop()))) == {0}  # noqa: B023
            told = json.loads((tmp_path / "cut" / "summary.json").read_text())
            if ranks == 4:
                assert told["parameters_sha256"] == whole["parameters_sha256"]
    assert told["samples"] == 3 * 1438 and told["workers"] == 3 and told["replicas_identical"]


def test_a_follower_that_freezes_is_named(launch: Callable[..., Any], tmp_path: Path) -> None:
    """One line, status 1, no traceback, within the deadline."""
    frozen = program(Fault("mpitrain.training.gradients.Learner.load", ["sleep 120"], rank=3, call=29))
    settings = ("--set", "algorithm.name=sparse-delta", "--set", "run.team=2", "--set", "run.deadline=10")
    ended = launch(4, *settings, "--set", "training.epochs=1000", program=frozen, deadline=100)
    assert ended.status == 1 and "for rank 3 (" in ended.err and "Traceback" not in ended.err, ended.err


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("algorithm.name=asgd", "run.team=2"), "run.team = 2: workers of this algorithm are single ranks"),
        (("algorithm.name=easgd", "run.team=2"), "run.team = 2: 3 ranks beside the server cannot be divided"),
        (("algorithm.name=sparse-delta", "run.team=3"), "run.team = 3: 4 ranks cannot be divided into teams of 3"),
        (("algorithm.name=sparse-delta", "run.team=0"), "run.team: "),
        (("algorithm.name=sparse-delta", "run.team=nodes"), "run.team: "),
        (("algorithm.name=sparse-delta", "run.team=2", "stages=[{at=0, workers=3}]"), "asks for 3 workers"),
    ],
)
def test_what_cannot_work_is_one_line(
    keys: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 on every rank, and no run folder."""
    options = TrainOptions(overrides=keys, out=tmp_path / "run")
    assert set(Job[int](4).run(lambda transport: train_on(transport, options, Stop()))) == {2}
    errors = capsys.readouterr().err
    assert line in errors and errors.count("\n") == 1 and not (tmp_path / "run").exists()
