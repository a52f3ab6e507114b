"""What can compute a network, what steps by it take on a clock that the test moves, and the times that are kept."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mpitrain import config as configuration
from mpitrain.files import sealed_json
from mpitrain.training import step_times
from mpitrain.training.step_times import SECONDS, StepTimes, Way, keep, key_of, path_of, read, slowest, timed, ways

NUMPY, TORCH, BF16 = Way("numpy", "float32"), Way("torch", "float32"), Way("torch", "bf16")
BOTH = ("model.backend=auto", "run.matmul=auto")


class Machine:
    """A clock that steps move on: so many seconds a step, and a sample; `late` more in the turns that it names."""

    def __init__(self, late: dict[int, float] | None = None) -> None:
        self.now, self.taken, self.late = 100.0, list[int](), late or {}

    def clock(self) -> float:
        return self.now

    def step(self, start: float, each: float) -> Callable[[int], object]:
        def take(samples: int) -> None:
            self.now += start + each * samples + self.late.get(len(self.taken), 0.0)
            self.taken.append(samples)

        return take


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], [NUMPY]),
        (["model.backend=auto"], [NUMPY, TORCH]),
        (BOTH, [NUMPY, TORCH, BF16]),
        ([*BOTH, "training.dtype=float64"], [NUMPY, TORCH]),
        (["model.backend=torch", "run.matmul=auto"], [TORCH, BF16]),
        (["run.matmul=auto"], [NUMPY]),
        (["model.backend=auto", "run.matmul=bf16"], [Way("numpy", "bf16"), BF16]),  # it was asked for by its name
        (["model.import=net.py:build", *BOTH], [TORCH, BF16]),
    ],
)
def test_ways_that_a_configuration_leaves(settings: list[str], expected: list[Way]) -> None:
    config = configuration.load(None, list(settings))
    assert ways(config) == expected
    chosen = expected[-1].of(config)
    assert (chosen.model.backend, chosen.run.matmul) == expected[-1] and ways(chosen) == expected[-1:]


def test_the_shortest_of_several_turns_counts() -> None:
    """Two turns of 4 samples; then nine of all 64, the last step of which another program has disturbed."""
    machine = Machine(late={21: 0.5})
    found = timed("it", [machine.step(0.002, 0.0), machine.step(0.001, 1e-5)], 64, machine.clock)
    assert found.samples == 64 and found.of == "it" and found.fastest == 1
    assert found.seconds == [pytest.approx(0.002), pytest.approx(0.00164)]
    assert machine.taken == [4] * 4 + [64] * 18


@pytest.mark.parametrize(("each", "count"), [(0.01, 64), (0.02, 64), (0.05, 28), (0.5, 8), (30.0, 8)])
def test_a_slow_network_is_timed_on_fewer_samples(each: float, count: int) -> None:
    """Of 64, first 4, twice; then as many as one turn has time for, or 8. What 64 take is told by a line."""
    machine = Machine()
    found = timed("", [machine.step(0.02, 0.75 * each), machine.step(0.001, 0.25 * each)], 64, machine.clock)
    assert machine.taken[4] == max(machine.taken) and abs(machine.taken[4] - count) <= 4
    assert machine.now - 100.0 <= max(SECONDS, 16 * each + 0.1) + 1e-6
    assert found.seconds == [pytest.approx(0.02 + 48 * each), pytest.approx(0.001 + 16 * each)]


def test_a_stall_of_the_first_step_does_not_make_all_others_long() -> None:
    """It takes the time that there is; but two numbers of samples still tell what does not grow with them."""
    machine = Machine(late={0: 3.0})
    found = timed("", [machine.step(0.15, 1e-4)], 64, machine.clock)
    assert machine.taken == [4, 4, 8] and found.seconds == [pytest.approx(0.15 + 64e-4)]


def test_one_that_is_slow_by_its_parameters_may_be_the_faster_on_a_minibatch() -> None:
    """On 16 samples the first is as fast, on the 90 that there is time for it is not, and on 256 still less."""
    machine = Machine()
    first, second = machine.step(0.05, 0.004), machine.step(0.08, 0.0015)
    found = timed("", [first, first, second], 256, machine.clock)
    assert found.fastest == 2 and max(machine.taken) < 256
    assert found.seconds == pytest.approx([0.05 + 1.024, 0.05 + 1.024, 0.08 + 0.384])


@pytest.mark.parametrize(("seconds", "number"), [([1.0, 1.0], 0), ([1.01, 1.0], 0), ([1.03, 1.0], 1), ([3, 2, 1], 2)])
def test_of_two_that_are_as_good_the_first(seconds: list[float], number: int) -> None:
    assert StepTimes(64, seconds).fastest == number


def test_what_is_best_for_the_slowest_rank() -> None:
    """By one rank's times the first way, by the sums neither: of the slower rank 5 and 3 seconds."""
    found = slowest([StepTimes(10, [1.0, 3.0]), StepTimes(10, [5.0, 2.0])])
    assert found == StepTimes(10, [5.0, 3.0]) and found.fastest == 1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_kept_times_come_back(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = StepTimes(64, [0.25, 0.125], "a network")
    assert read(times.of, 2) is None
    keep(times)
    assert read(times.of, 2) == times and capsys.readouterr().err == ""
    assert [path.parent for path in cache.rglob("*.json")] == [cache / "mpitrain" / "steps"]


def sealed(**fields: object) -> bytes:
    return sealed_json(fields).encode()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda content: content[: len(content) // 2], "does not match its checksum"),
        (lambda content: content.replace(b"0.25", b"0.26"), "does not match its checksum"),
        (lambda content: b"", "does not match its checksum"),
        (lambda content: b"\xff\xfe" + content, ""),
        (lambda content: sealed(), ""),
        (lambda content: sealed(samples=1, seconds=[-1.0, 1.0], of="it"), ""),
        (lambda content: sealed(samples=1, seconds=[1.0], of="it"), "is of something else"),
        (lambda content: sealed(samples=1, seconds=[1.0, 1.0], of="x"), "is of something else"),
    ],
)
def test_a_spoilt_or_foreign_file_is_said_and_ignored(
    cache: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[bytes], bytes], why: str
) -> None:
    keep(StepTimes(64, [0.25, 0.125], "it"))
    path = path_of("it")
    path.write_bytes(spoil(path.read_bytes()))
    assert read("it", 2) is None
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and str(path) in err and why in err and "timed anew" in err
    keep(StepTimes(64, [0.5, 0.125], "it"))
    assert read("it", 2) == StepTimes(64, [0.5, 0.125], "it")


def test_without_a_cache_folder_nothing_is_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.write_text("a file")
    keep(StepTimes(64, [0.25], "it"))
    assert cache.read_text() == "a file" and capsys.readouterr().err == ""
    assert read("it", 1) is None


def test_what_times_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Network, minibatch, precision, threads and processor; not how it is trained, nor what changes from hour to hour.
    Of a function that Python was given nothing is known."""
    facts = {"model name": "A", "flags": "avx2", "cpu MHz": "2000"}
    monkeypatch.setattr(step_times, "processor", lambda: facts)

    def key(*settings: str, seen: tuple[object, ...] = (64, 1)) -> str:
        config = configuration.load(None, [*settings])
        return key_of(config, [NUMPY], {}, *seen)

    same = [key(), key("training.learning_rate=0.3"), key("algorithm.name=easgd")]
    other = [key("model.width=2"), key("training.dtype=float64"), key(seen=(64, 2)), key(seen=(32, 1))]
    facts["cpu MHz"] = "3000"
    same.append(key())
    facts["flags"] = "avx2 amx_bf16"
    other.append(key())
    assert len(set(same)) == 1 and len({*same, *other}) == 6
    assert key("model.import=python:model") == ""
