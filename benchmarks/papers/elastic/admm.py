"""Is trained round-robin ADMM unstable where Figure 1 of Zhang, Choromanska & LeCun 2015 says so, and only there?

    python benchmarks/papers/elastic/admm.py OUT.png [--turns N]

Trains x²/2 from x = 1000 by the program's own protocol, three workers and a centre as simulated ranks, in round-robin
order at two settings on either side of the boundary, and compares x̃ with the composite map that `mpitrain stability`
analyses. Prints a table; draws the envelopes of |x̃|.
"""

import argparse
from pathlib import Path

import numpy as np

from mpitrain import config as configuration
from mpitrain.algorithms.stability import maps
from mpitrain.flat import Array, Layout, Parameter
from mpitrain.protocols import PROTOCOLS
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.queue import Queue
from mpitrain.simulation.job import Job
from mpitrain.training.context import Session, fresh
from mpitrain.training.gradients import Learner

WORKERS, START = 3, 1000.0
SETTINGS = ((0.001, 2.5), (0.01, 2.5), (0.001, 9.9))  # (η, ρ): the paper's unstable one, and two beside it


class Nothing:
    """A corpus whose samples are all the same."""

    shape, classes, in_memory, part = (1,), 2, True, "train"
    form = SampleForm(shape)

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def gather(self, indices: Array, out: Batch, place: object = None) -> Batch:
        out.inputs[:], out.targets[:] = 0, 0
        return out


class Parabola:
    """F(x) = x²/2."""

    drawing = False

    layout = Layout([Parameter("x", (1,), ("constant", START))])
    input_shape, classes = (1,), 2

    def initial(self, seed: int, dtype: np.dtype) -> Array:
        return np.array([START], dtype)

    def loss_and_gradient(self, theta, gradient, batch, draws=None, on_ready=None):  # type: ignore[no-untyped-def]
        np.copyto(gradient, theta)
        if on_ready:
            on_ready(slice(0, 1))
        return 0.5 * float(theta[0] ** 2)


def trained(eta: float, rho: float, turns: int) -> list[float]:
    """x̃ as the first worker reads it, once a round."""
    keys = ["algorithm.name=admm", "algorithm.order=round-robin", "algorithm.tau=1", f"algorithm.rho={rho}"]
    keys += [f"training.learning_rate={eta}", "training.minibatch=1", "training.epochs=1", "training.dtype=float64"]
    config, seen = configuration.load(None, [*keys, "run.exchange=messages", "run.evaluate_every=0"]), list[float]()

    def program(transport) -> None:  # type: ignore[no-untyped-def]
        corpus, model = Nothing(turns), Parabola()
        schedule = config.schedule(turns)
        state = fresh(config.algorithm, model.initial(1, np.dtype(float)), Queue(turns, schedule.total))
        learner = Learner(model, corpus, configuration.Training(dtype="float64"))
        members = list(transport.members)
        session = Session(config, transport, members, model, learner, schedule, state, transport.clock)
        if transport.rank == 1:
            plain = learner.gradient

            def gradient(*arguments, **more):  # type: ignore[no-untyped-def]
                seen.append(float(state.local["frozen"][0]))
                return plain(*arguments, **more)

            learner.gradient = gradient  # type: ignore[method-assign]
        PROTOCOLS["server"](session)

    Job[None](WORKERS + 1).run(program)
    return seen


def main() -> None:
    """The table and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--turns", type=int, default=30_000)
    options = parser.parse_args()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained")
    axes = figure.add_subplot(xlabel="round", ylabel="largest |x̃| of 200 rounds", yscale="log")
    print("| η | ρ | spectral radius of a round | largest x̃ of the last 200 rounds | difference from the map |")
    print("|---|---|---|---|---|")
    for eta, rho in SETTINGS:
        seen = np.array(trained(eta, rho, options.turns))
        exact = np.array(maps.centre_trajectory(maps.admm, WORKERS, eta, rho, options.turns))[::WORKERS][: len(seen)]
        radius = float(maps.spectral_radius(maps.admm, WORKERS, np.float64(eta), np.float64(rho)))
        differs = np.abs(seen - exact).max() / np.abs(exact).max()
        print(f"| {eta} | {rho} | {radius:.5f} | {np.abs(seen[-200:]).max():.3g} | {differs:.1e} |")
        windows = [np.abs(seen[begin : begin + 200]).max() for begin in range(0, len(seen) - 199, 200)]
        axes.plot(np.arange(len(windows)) * 200, windows, label=f"η = {eta}, ρ = {rho}: radius {radius:.4f}")
    axes.legend()
    figure.savefig(options.out)


if __name__ == "__main__":
    main()
