"""Every algorithm trains on the device what it trains on the CPU: one rank, and two that share it."""

from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms import ALGORITHMS
from mpitrain.config import Pretraining
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.device.gpu import Gpu
from mpitrain.flat import on_host
from mpitrain.models.layers.dropout import DropoutShare
from mpitrain.models.network import build
from mpitrain.models.partition import stages
from mpitrain.monitoring.evaluation import Evaluation
from mpitrain.mpi import Transport
from mpitrain.protocols import PROTOCOLS
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.rng import stream
from mpitrain.training.pretraining import PretrainingTask, steps

#: What else an algorithm is told, so that a short training goes through all of it.
MORE = {
    "asgd": ("algorithm.momentum=0.5", "algorithm.gradient_decay=0.9", "algorithm.minibatches=2"),
    "adownpour": ("algorithm.tau=2",),
    "easgd": ("algorithm.tau=2",),
    "eamsgd": ("algorithm.tau=2", "algorithm.start=different"),
    "easgd-sync": ("algorithm.tau=2",),
    "block-momentum": ("algorithm.tau=2", "algorithm.preset=bmuf"),
    "eamsgd-sync": ("algorithm.tau=2",),
    "admm": ("algorithm.tau=3", "algorithm.delta=0.5"),
    "allreduce": ("algorithm.bucket_mb=0.001",),
    "hybrid": ("algorithm.scheme=c", "algorithm.group=1"),
    "sparse-delta": ("algorithm.threshold=0.25", "algorithm.codec=golomb-rice"),
}


class Noise:
    """Random images and targets."""

    shape, classes, samples, in_memory = (8, 8, 1), 10, 48, True
    form = SampleForm(shape)

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self._inputs = rng.standard_normal((self.samples, *self.shape)).astype(np.float32)
        self._targets = rng.integers(10, size=self.samples)

    def gather(self, indices: np.ndarray, out: Any, place: Any = None) -> Any:
        """Copy the samples."""
        out.inputs[:], out.targets[:] = self._inputs[indices], self._targets[indices]
        return out


def trained(
    session_of: Any, transport: Transport, name: str, device: Cpu, *settings: str, network: Any = None
) -> dict[str, np.ndarray]:
    """The state's vectors after a few updates, in an order that repeats."""
    if network is None:
        network = build("digits-cnn", (8, 8, 1), 10, width=0.125, dropout=0.25, l2=1e-3, workspace=device.workspace())
    kind = ALGORITHMS[name]
    turns = "order" in kind.__struct_fields__ and "sync" not in name and name != "block-momentum"
    order = ("algorithm.order=round-robin",) if turns else ()
    common = (f"algorithm.name={name}", "training.dtype=float32", "training.minibatch=6", "training.epochs=1")
    more = (*common, *order, *MORE.get(name, ()), *settings)
    session = session_of(transport, *more, network=network, corpus=Noise(), device=device)
    PROTOCOLS[session.config.algorithm.protocol](session)
    vectors = {**session.state.vectors(), **session.state.local}
    return {key: np.array(on_host(vector), np.float64) for key, vector in vectors.items()}


def require_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Within rounding, of which a threshold makes more."""
    assert found.keys() == expected.keys()
    for name, vector in expected.items():
        scale = max(float(np.linalg.norm(vector)), 1e-3)
        assert np.linalg.norm(found[name] - vector) / scale < 1e-4, name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_rank(session_of: Any, gpu: Gpu, name: str, launched: Any) -> None:
    from mpi4py import MPI

    alone = Transport(MPI.COMM_SELF, deadline=60.0)
    require_same(trained(session_of, alone, name, gpu), trained(session_of, alone, name, CPU))
    assert "copy of an operand" not in launched


@pytest.mark.parametrize("name", ["asgd", "allreduce"])
def test_gradients_of_sums(session_of: Any, gpu: Gpu, name: str, launched: Any) -> None:
    from mpi4py import MPI

    alone, rate = Transport(MPI.COMM_SELF, deadline=60.0), "training.rate_per=sample"
    require_same(trained(session_of, alone, name, gpu, rate), trained(session_of, alone, name, CPU, rate))
    assert "copy of an operand" not in launched


def test_block_momentum_in_turns(session_of: Any, gpu: Gpu, launched: Any) -> None:
    from mpi4py import MPI

    alone, settings = Transport(MPI.COMM_SELF, deadline=60.0), ("algorithm.order=round-robin", "algorithm.tau=3")
    require_same(*(trained(session_of, alone, "block-momentum", device, *settings) for device in (gpu, CPU)))
    assert "copy of an operand" not in launched


@pytest.mark.parametrize("bits", [4, 32])
def test_deltas_of_more_bits(session_of: Any, gpu: Gpu, bits: int) -> None:
    from mpi4py import MPI

    alone, settings = Transport(MPI.COMM_SELF, deadline=60.0), f"algorithm.bits={bits}"
    require_same(*(trained(session_of, alone, "sparse-delta", device, settings) for device in (gpu, CPU)))


@pytest.mark.parametrize("method", ["layerwise", "contrastive-divergence"])
def test_pre_training(gpu: Gpu, method: Any) -> None:
    """Of hidden layers that grow one by one, and on what copies of the layers below make of the inputs."""
    found, options = [], Pretraining(method=method, minibatch=12, epochs=2, learning_rate=0.1)
    for device in (gpu, CPU):
        network = build("zhang2013-dnn", (8, 8, 1), 10, width=0.005, hidden_layers=3, workspace=device.workspace())
        theta = device.to_device(network.initial(0, np.float32) + np.float32(0.1))
        losses = [float(step.loss) for step in steps(PretrainingTask(network, Noise(), theta, options, 1, device))]
        found.append({"losses": np.array(losses), "theta": np.array(on_host(theta), np.float64)})
    require_same(*found)


def test_evaluation(gpu: Gpu, launched: Any) -> None:
    """Of parameters on the device or not; those that are there do not come to the host."""
    results = []
    for device in (gpu, CPU):
        network = build("digits-cnn", (8, 8, 1), 10, width=0.25, workspace=device.workspace())
        theta = network.initial(0, np.float32)
        evaluation = Evaluation(network, {"test": Noise()}, theta.dtype, lambda: 0.0, device=device)
        placed = device.to_device(theta)
        launched.clear()
        evaluation.begin(placed)
        assert "wait" not in launched
        results += [evaluation.run(placed), evaluation.run(theta)]
    for result in results:
        assert result == pytest.approx(results[-1], rel=1e-4)


@pytest.mark.parametrize("own", [slice(0, 7), slice(7, 64)])
def test_a_part_drops_the_cpus_units(gpu: Gpu, own: slice, launched: Any) -> None:
    """And draws as often, in a kernel."""
    found: list[Any] = []
    for workspace in (gpu.workspace(), CPU.workspace()):
        network = build("digits-cnn", (8, 8, 1), 10, dropout=0.3, workspace=workspace)
        stage, rng = stages(network, network.split)[0], stream(1, "dropout")
        assert stage.dropout is not None
        share = DropoutShare(stage.dropout, own, stage.layer.units, workspace)
        launched.clear()
        share.draw(rng, 150, np.dtype(np.float32))
        assert list(launched) in ([], ["dropout", "copyto"])
        found.append((on_host(share.of([slice(3, 140)])), rng.random(5).tolist()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] and 0 < np.count_nonzero(found[0][0]) < found[0][0].size


FORWARD = {
    "strom2015-dnn": 5 * ["gemmEx", "bias_sigmoid"] + ["gemmEx", "add_bias", "softmax_gradient", "sum"],
    "digits-cnn": [
        *("gather_patches", "gemmEx", "max_pool", "bias_relu", "gather_patches", "gemmEx", "bias_relu"),
        *("gemmEx", "bias_relu", "gemmEx", "add_bias", "softmax_gradient", "sum"),
    ],
}


@pytest.mark.parametrize("preset", FORWARD)
def test_a_bias_and_its_activation_are_one_kernel(cupy: Any, gpu: Gpu, preset: str, launched: Any) -> None:
    """And a step makes the host wait for nothing but its loss."""
    if cupy.__version__ != "0.fake":
        pytest.skip("CuPy does not tell what it launches")
    gpu.cudnn, (shape, count) = None, ((8, 8, 1), 3)
    network = build(preset, shape, 10, width=0.02, l2=0.0, workspace=gpu.workspace())
    theta = gpu.to_device(network.initial(0, np.float32))
    batch = Batch(gpu.to_device(np.ones((count, *shape), np.float32)), gpu.to_device(np.zeros(count, np.int32)))
    launched.clear()
    loss = network.loss_and_gradient(theta, np.empty_like(theta), batch)
    assert list(launched)[: len(FORWARD[preset])] == FORWARD[preset] and "wait" not in launched
    assert np.isfinite(float(loss))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "name", [name for name, kind in ALGORITHMS.items() if kind.protocol != "synchronous" or name == "allreduce"]
)
def test_several_ranks(session_of: Any, transport: Transport, gpu: Gpu, name: str, direct: bool, launched: Any) -> None:
    gpu.direct = direct
    require_same(trained(session_of, transport, name, gpu), trained(session_of, transport, name, CPU))
    assert "copy of an operand" not in launched


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("scheme", ["a", "b", "c"])
def test_hybrid_counts_the_same_payload_however_it_travels(
    session_of: Any, transport: Transport, gpu: Gpu, scheme: str, direct: bool
) -> None:
    settings = f"algorithm.scheme={scheme}", "algorithm.fc_batch=sub" if scheme != "a" else "algorithm.fc_batch=full"
    expected = bytes_by_kind(session_of, transport, CPU, *settings)
    gpu.direct = direct
    assert expected["activations"] > 0 and bytes_by_kind(session_of, transport, gpu, *settings) == expected


def bytes_by_kind(session_of: Any, transport: Transport, device: Cpu, *settings: str) -> dict[str, int]:
    """What a short training of hybrid's says of its messages."""
    network = build("digits-cnn", (8, 8, 1), 10, width=0.125, workspace=device.workspace())
    common = "algorithm.name=hybrid", "training.dtype=float32", "training.minibatch=6", "training.epochs=1"
    session = session_of(transport, *common, *settings, network=network, corpus=Noise(), device=device)
    PROTOCOLS["hybrid"](session)
    return dict(session.counters.summary()["bytes_by_kind"])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("exchange", ["one-sided", "messages"])
@pytest.mark.parametrize("name", ["asgd", "easgd"])
def test_other_ways_of_exchange(session_of: Any, transport: Transport, gpu: Gpu, name: str, exchange: str) -> None:
    setting = f"run.exchange={exchange}"
    expected = trained(session_of, transport, name, CPU, setting)
    require_same(trained(session_of, transport, name, gpu, setting), expected)
