"""Vectors that MPI takes from device memory by message. On the stand-in that is host memory, so any MPI can."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mpitrain.device import Cpu, agree
from mpitrain.device.gpu import Gpu
from mpitrain.errors import WireError
from mpitrain.mpi import Transport
from mpitrain.mpi.tags import Tag
from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.messages import TO_MASTER, TO_WORKER, Gradient, Piece
from mpitrain.protocols.server.link import MasterLink
from mpitrain.protocols.server.merged import MergedCentre, MergingCentre
from mpitrain.protocols.server.merging import MergingWorker
from mpitrain.protocols.server.versioned import open_memory
from mpitrain.sampling.queue import Work

from .test_choice import FAKE
from .test_training import trained

SIZE = 1037
several = pytest.mark.mpi(min_size=2)


@pytest.fixture
def direct(gpu: Gpu, aware: None) -> Gpu:
    """The device, as on ranks that all have a CUDA-aware MPI."""
    gpu.direct = True
    return gpu


def numbers(size: int = SIZE) -> np.ndarray:
    return np.arange(size, dtype=np.float32)


# ---- checksums


def test_one_checksum_for_each_memory(gpu: Gpu) -> None:
    vector = numbers()
    there = gpu.to_device(vector)
    before = gpu.checksum(vector), gpu.checksum(there)
    assert before == (gpu.checksum(vector.copy()), gpu.checksum(gpu.to_device(vector.copy())))
    vector[700] = there[700] = 0
    assert gpu.checksum(vector) != before[0] and gpu.checksum(there) != before[1]


def test_a_checksum_is_of_the_final_vector(gpu: Gpu) -> None:
    there = gpu.to_device(np.zeros(SIZE, np.float32))
    there.set(numbers(), stream=gpu.compute)  # on the stand-in, not yet made
    assert gpu.checksum(there) == gpu.checksum(gpu.to_device(numbers()))


# ---- streams


@several
def test_mpi_reads_a_vector_when_it_is_final(transport: Transport, direct: Gpu) -> None:
    way, there = direct.transport(transport), direct.to_device(np.zeros(SIZE, np.float32))
    if transport.rank == 0:
        there.set(numbers(), stream=direct.compute)
        for rank in range(1, transport.size):
            transport.wait(way.send(rank, Tag.VECTOR, there), "a vector to leave")
    else:
        way.receive_into(0, Tag.VECTOR, there, "a vector")
        np.testing.assert_array_equal(np.multiply(there, 2).get(), 2 * numbers())


@several
@pytest.mark.parametrize("at_once", [False, True])
def test_mpi_writes_over_a_vector_when_it_has_been_read(transport: Transport, direct: Gpu, at_once: bool) -> None:
    way, there = direct.transport(transport), direct.to_device(-numbers())
    if transport.rank == 0:
        there = direct.to_device(numbers())
        for rank in range(1, transport.size):
            transport.wait(way.send(rank, Tag.VECTOR, there), "a vector to leave")
        return
    read = direct.pinned(SIZE, np.float32)
    there.get(stream=direct.compute, out=read, blocking=False)
    if at_once:
        way.receive_into(0, Tag.VECTOR, there, "a vector")
    else:
        transport.wait(way.start_receive(0, Tag.VECTOR, there), "a vector")
    direct.compute.synchronize()
    np.testing.assert_array_equal(read, -numbers())
    np.testing.assert_array_equal(there.get(), numbers())


# ---- the protocols


@several
@pytest.mark.usefixtures("aware")
@pytest.mark.parametrize("name", ["asgd", "mdownpour", "adownpour", "easgd", "eamsgd", "downpour", "admm"])
def test_the_bits_of_staged_messages(session_of: Any, transport: Transport, gpu: Gpu, name: str) -> None:
    """In an order that repeats: the way of a vector changes nothing about it."""
    staged = trained(session_of, transport, name, gpu, "run.exchange=messages")
    gpu.direct = True
    for exchange in ("auto", "messages"):
        found = trained(session_of, transport, name, gpu, f"run.exchange={exchange}")
        assert found.keys() == staged.keys()
        assert all(np.array_equal(found[key], staged[key]) for key in found)


@several
@pytest.mark.parametrize("name", ["asgd", "easgd"])
def test_all_vectors_go_from_the_same_device_memory(
    session_of: Any, transport: Transport, direct: Gpu, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None by way of the host, round after round: no memory is asked for again. And every byte is counted."""
    places: list[tuple[str, int]] = []

    def watch(method: str) -> None:
        plain = getattr(Transport, method)

        def call(self: Transport, rank: int, tag: int, buffer: Any, *more: Any) -> Any:
            if tag == Tag.VECTOR:
                assert not isinstance(buffer, np.ndarray)
                places.append((method, buffer.data.ptr))
            return plain(self, rank, tag, buffer, *more)

        monkeypatch.setattr(Transport, method, call)

    for method in ("send", "receive_into", "start_receive"):
        watch(method)
    settings = f"algorithm.name={name}", "algorithm.order=round-robin", "training.dtype=float32", "training.epochs=1"
    period = ["algorithm.tau=2"] if name == "easgd" else []
    session = session_of(
        transport, *settings, *period, "training.minibatch=4", device=direct, samples=32 * (transport.size - 1)
    )
    PROTOCOLS[session.config.algorithm.protocol](session)
    assert session.exchange == "messages from GPU memory"
    workers, sent = transport.size - 1, sum(method == "send" for method, _ in places)
    assert len(places) >= 4
    assert len({place for _, place in places}) <= (2 if transport.rank or name == "asgd" else 2 * workers)
    beside = transport.traffic.bytes_sent - sent * session.state.theta.nbytes
    assert 0 < beside <= 150 * (transport.traffic.messages_sent - sent)


# ---- what arrives damaged


def damaged(device: Gpu, size: int) -> Any:
    """`numbers` with one bit that is not as it left."""
    vector = numbers(size)
    vector.view(np.uint32)[size // 2] ^= 1
    return device.to_device(vector)


@several
def test_a_damaged_gradient_names_its_worker(session_of: Any, transport: Transport, direct: Gpu) -> None:
    session = session_of(transport, "training.dtype=float32", device=direct)
    size, workers = session.state.theta.size, list(range(1, transport.size))
    memory = open_memory(transport, "messages", size, np.dtype(np.float32), 0, direct)
    way = direct.transport(transport)
    if transport.rank:
        vector = damaged(direct, size) if transport.rank == workers[-1] else direct.to_device(numbers(size))
        transport.wait(way.send(0, Tag.VECTOR, vector), "a gradient to leave")
    else:
        centre = MergingCentre(session, memory)
        note = Gradient(0, Work(0, 0, 1, 1), nbytes=4 * size, checksum=direct.checksum(direct.to_device(numbers(size))))
        for worker in workers[:-1]:
            np.testing.assert_array_equal(centre.gradient(worker, note).get(), numbers(size))
        with pytest.raises(WireError, match=f"rank {workers[-1]} sent a gradient that does not match its checksum"):
            centre.gradient(workers[-1], note)
        with pytest.raises(WireError, match="rank 1 sends 7 bytes"):
            centre.gradient(1, replace(note, nbytes=7))
    transport.barrier("the end")


@several
def test_a_damaged_model_names_the_server(session_of: Any, transport: Transport, direct: Gpu) -> None:
    session = session_of(transport, "training.dtype=float32", device=direct)
    size = session.state.theta.size
    memory = open_memory(transport, "messages", size, np.dtype(np.float32), 0, direct)
    way = direct.transport(transport)
    if transport.rank:
        worker = MergingWorker(session, MergedCentre(session, memory, MasterLink(session, 0)))
        assert worker.pull() == 7
        np.testing.assert_array_equal(worker.theta.get(), numbers(size))
        with pytest.raises(WireError, match="rank 0 sent a copy of Θ that does not match its checksum"):
            worker.pull()
    else:
        check = direct.checksum(direct.to_device(numbers(size)))
        for vector in (direct.to_device(numbers(size)), damaged(direct, size)):
            for rank in range(1, transport.size):
                TO_MASTER.receive(transport, rank, "a wish for Θ")
                TO_WORKER.post(transport, rank, Piece(4 * size, check, 7))
                transport.wait(way.send(rank, Tag.VECTOR, vector), "Θ to leave")
    transport.flush()
    transport.barrier("the end")


# ---- who decides


@several
@pytest.mark.parametrize("lacking", ["nothing", "a GPU", "a CUDA-aware MPI"])
def test_all_ranks_or_none(transport: Transport, gpu: Gpu, lacking: str) -> None:
    last = transport.size - 1
    device = Cpu() if transport.rank == last and lacking == "a GPU" else gpu
    agree(device, transport, transport.rank != last or lacking != "a CUDA-aware MPI", "its word")
    reasons = {
        "nothing": "MPI is CUDA-aware on every rank (its word)",
        "a GPU": f"rank {last} has no GPU",
        "a CUDA-aware MPI": f"rank {last} has an MPI that is not CUDA-aware (its word)",
    }
    assert device.direct == (lacking == "nothing")
    assert device.passing == (reasons[lacking] if device is gpu else "")


@pytest.mark.parametrize(
    ("how", "recorded", "line"),
    [
        ("messages", "messages from GPU memory", "vectors go to MPI from GPU memory: it said so"),
        ("allreduce", "allreduce from GPU memory", "vectors go to MPI from GPU memory: it said so"),
        ("collectives", "collectives from GPU memory", "vectors go to MPI from GPU memory: it said so"),
        ("shared", "shared", "vectors are staged in host memory: the exchange is 'shared'"),
        ("none", "none", None),
    ],
)
def test_what_is_recorded_and_said(session_of: Any, direct: Gpu, how: str, recorded: str, line: str | None) -> None:
    from mpi4py import MPI

    direct.passing = "it said so"
    session, said = session_of(Transport(MPI.COMM_SELF), device=direct), []
    session.journal.progress.line = said.append
    session.say_exchange(how)
    assert session.exchange == recorded
    assert said == [line] * (line is not None)


def words(name: str, *more: str) -> list[str]:
    """What makes the program train a little."""
    settings = "run.cuda_aware=yes", "training.epochs=1", "model.width=0.05", f"algorithm.name={name}", *more
    return ["--out", "run", *(word for setting in settings for word in ("--set", setting))]


@pytest.mark.parametrize("name", ["asgd", "easgd"])
def test_a_run_says_how_its_vectors_travel(
    launch: Any, stand_in: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    ended = launch(3, *words(name, "run.device=gpu"))
    assert ended.status == 0, ended.err
    assert "vectors go to MPI from GPU memory: MPI is CUDA-aware on every rank (run.cuda_aware = 'yes')" in ended.out
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["exchange"] == "messages from GPU memory" and told["bytes_sent"] > 0


def test_one_rank_without_a_gpu_has_all_vectors_staged(
    run_command: Callable[[list[str], float], Any], stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("this environment has no mpirun of its own")
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    program = [sys.executable, "-m", "mpitrain", *words("asgd")]
    ended = run_command([str(mpirun), "-n", "2", *program, ":", "-n", "1", "env", "FAKE_CUPY_DEVICES=0", *program], 120)
    assert ended.status == 0, ended.err
    assert "vectors are staged in host memory: rank 2 has no GPU" in ended.out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exchange"] == "shared"
