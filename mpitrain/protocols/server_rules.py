"""What the server does with a gradient, by algorithm: the arithmetic on one cache block of its vectors."""

from collections.abc import Callable

from mpitrain.algorithms import Adownpour, Algorithm, Asgd, Mdownpour, Mvadownpour
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array
from mpitrain.rules import averaging
from mpitrain.rules import server as rule
from mpitrain.state import State

#: Applies a summed gradient to a block, given η, the weight α and scratch of the block's length.
ServerRule = Callable[[State, slice, Array, float, float, Array], None]


def rule_of(options: Algorithm, device: Cpu = CPU) -> ServerRule:
    """The rule of an algorithm's options, by the device's kernels."""
    match options:
        case Asgd():
            return _asgd(options.momentum, device)
        case Mdownpour():
            return _mdownpour(options.delta, device)
        case Adownpour():
            return _averaged(None, device)
        case Mvadownpour():
            return _averaged(options.average_rate, device)
        case _:
            raise TypeError(f"{type(options).__name__} has no server")


def _asgd(mu: float, device: Cpu) -> ServerRule:
    """Chan & Lane 2014, Algorithm 1; Zhang 2013 is μ = 0."""
    update = device.fast(rule.update)

    def apply(state: State, b: slice, g: Array, eta: float, alpha: float, scratch: Array) -> None:
        velocity = state.velocity[b] if state.velocity is not None else None
        update(state.theta[b], velocity, g, scratch, eta=eta, mu=mu, alpha=alpha)

    return apply


def _mdownpour(delta: float, device: Cpu) -> ServerRule:
    """MDOWNPOUR: Θ is y, the point where workers take gradients."""
    mdownpour = device.fast(rule.mdownpour)

    def apply(state: State, b: slice, g: Array, eta: float, alpha: float, scratch: Array) -> None:
        assert state.velocity is not None
        mdownpour(state.theta[b], state.velocity[b], g, scratch, eta=eta, delta=delta)

    return apply


def _averaged(rate: float | None, device: Cpu) -> ServerRule:
    """ADOWNPOUR (`rate` None) and MVADOWNPOUR: DOWNPOUR, which pushes −η times the sum of τ gradients, and z beside it.

    z takes in x̃_t just before tick t + 1, as the sequential averages do.
    """
    running, moving = device.fast(averaging.running_average), device.fast(averaging.moving_average)
    update = device.fast(rule.update)

    def apply(state: State, b: slice, g: Array, eta: float, alpha: float, scratch: Array) -> None:
        assert state.average is not None
        x, z = state.theta[b], state.average[b]
        if rate is None:
            running(z, x, scratch, t=state.index)
        else:
            moving(z, x, scratch, rate=rate)
        update(x, None, g, scratch, eta=eta, mu=0.0, alpha=1.0)

    return apply
