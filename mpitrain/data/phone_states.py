"""Classes of speech frames: begin, middle and end of each phone in its left context, with rare states merged."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array

THIRDS = ("begin", "middle", "end")


class PhoneState(NamedTuple):
    """One third of a phone in the context of the phone to its left; `left` is "" in merged classes."""

    left: str
    phone: str
    third: int

    def __str__(self) -> str:
        return f"{self.left + '-' if self.left else ''}{self.phone}.{THIRDS[self.third]}"


def align(phones: Sequence[str], starts: Array, end: int, centres: Array) -> tuple[list[PhoneState], Array]:
    """The states of an utterance, and for each frame (by its middle sample) the index of its state."""
    left = [phones[0], *phones[:-1]]
    states = [PhoneState(*pair, third) for pair in zip(left, phones, strict=True) for third in range(3)]
    phone = np.maximum(np.searchsorted(starts, centres, "right") - 1, 0)
    lengths = np.diff(starts, append=end)
    third = np.clip(3 * (centres - starts[phone]) // np.maximum(lengths[phone], 1), 0, 2)
    return states, 3 * phone + third


def choose(states: Sequence[PhoneState], counts: Sequence[int] | Array, wanted: int) -> tuple[Array, list[str]]:
    """The class of each state (int32 [states]) and the classes' names.

    The most frequent states get classes of their own; all other states of one third of a phone share a class, whatever
    their left contexts. Together these are `wanted` classes, or fewer if there are not enough states. Raises BadInput
    if `wanted` is less than the number of thirds of phones.
    """
    order = sorted(range(len(states)), key=lambda number: (-counts[number], states[number]))
    seen = sum(count > 0 for count in counts)
    # merged[k]: number of classes for the states after the k most frequent ones. k + merged[k] never decreases.
    merged, rest = [0], set[tuple[str, int]]()
    for number in reversed(order):
        rest.add(states[number][1:])
        merged.append(len(rest))
    merged.reverse()
    fitting = [kept for kept in range(seen + 1) if kept + merged[kept] <= wanted]
    if not fitting:
        raise BadInput(f"--classes {wanted}: the thirds of all phones alone are {merged[0]}")
    kept = order[: fitting[-1]]
    shared = sorted({states[number][1:] for number in order[fitting[-1] :]})
    classes = [states[number] for number in kept] + [PhoneState("", *each) for each in shared]
    numbers = {state: number for number, state in enumerate(classes)}
    of = [numbers[state] if state in numbers else numbers[PhoneState("", *state[1:])] for state in states]
    return np.array(of, np.int32), [str(state) for state in classes]
