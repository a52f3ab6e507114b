"""Augmentation of training images while they are gathered: random crops, reflections and colour shifts.

Crops and horizontal reflections follow both image papers: random in training, the centre crop in evaluation (Krizhevsky
2014, §5; Zhang, Choromanska, LeCun 2015, §5.1 and supplement). The colour shift is that of Krizhevsky, Sutskever,
Hinton 2012, §4.1. How a sample is augmented depends on the seed, the epoch and its position in the epoch's order, but
not on the minibatch or the rank that processes it.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.sampling.rng import uniforms

DRAWS = 8  # uniform random numbers per sample: row, column, reflection, two pairs for three normal numbers


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of images; by default none.

    `crop`: side of the square crop in pixels, 0 for the whole image; `flip`: reflect images with probability ½;
    `colour_shift`: the standard deviation of α, 0 for none (0.1 in the paper).
    """

    crop: int = 0
    flip: bool = False
    colour_shift: float = 0.0
    seed: int = 1

    def shape(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of crops of images [h, w, c]. Raises BadInput naming data.crop."""
        if self.crop > min(image[:2]):
            raise BadInput(f"data.crop = {self.crop}: the images are {image[0]} x {image[1]} pixels")
        return (self.crop, self.crop, image[2]) if self.crop else image

    def refuse(self, kind: str) -> None:
        """Raise BadInput naming a key that is set but applies only to images."""
        for key, value in (("crop", self.crop), ("flip", self.flip), ("colour_shift", self.colour_shift)):
            if value:
                raise BadInput(f"data.{key}: {kind} are not images")


class Views:
    """Draws the crop, reflection and colour shift of each image of a minibatch, into buffers that grow as needed.

    `room`: rows and columns by which an image is larger than its crop. `axes` [c, c]: the principal axes of the colours
    in columns, each scaled to the shift for a standard normal number of 1; None for no colour shift.
    """

    def __init__(
        self, augmentation: Augmentation, room: tuple[int, int], channels: int, axes: Array | None, dtype: np.dtype
    ) -> None:
        self._augmentation, self._room, self._axes = augmentation, room, axes
        self._channels, self._dtype = channels, dtype
        self._moves = bool(any(room) or augmentation.flip or axes is not None)
        self._centre = np.array([room[0] // 2, room[1] // 2, 0])
        self._resize(0)

    def at(self, place: tuple[int, int] | None, count: int) -> tuple[Array, Array]:
        """int64 [count, 3]: top row, left column, whether reflected; and shifts in colour [count, c].

        `place` is the epoch and position of the first sample; None, for an evaluation, gives the unchanged centre crop.
        """
        if len(self._corners) < count:
            self._resize(count)
        corners, shifts, draws = self._corners[:count], self._shifts[:count], self._draws[:count]
        if place is None or not self._moves:
            corners[:] = self._centre
            shifts[:] = 0
            return corners, shifts
        epoch, start = place
        uniforms(self._augmentation.seed, "augmentation", (epoch,), start, draws)
        choose_views(draws, self._room, self._augmentation.flip, corners)
        if self._axes is not None:
            choose_shifts(draws, self._axes, shifts)
        return corners, shifts

    def _resize(self, count: int) -> None:
        self._corners = np.empty((count, 3), np.int64)
        self._shifts = np.zeros((count, self._channels), self._dtype)
        self._draws = np.empty((count, DRAWS))


def colour_axes(covariance: Array, scale: Array, deviation: float) -> Array:
    """[3, 3]: √λ_i·p_i in column i, times `deviation`, in units of normalised pixels (`scale` [3] each).

    λ_i and p_i are the eigenvalues and eigenvectors of the covariance of pixels. The paper's text multiplies p_i by
    α_i·λ_i, which depends on the unit of a pixel; its author's programs multiply by √λ_i, and so does this function.
    """
    values, vectors = np.linalg.eigh(np.asarray(covariance, np.float64))
    signs = np.where(vectors[np.abs(vectors).argmax(axis=0), range(3)] < 0, -1.0, 1.0)  # the same on every machine
    axes = deviation * vectors * signs * np.sqrt(np.maximum(values, 0)) * np.asarray(scale, np.float64)[:, None]
    return np.ascontiguousarray(axes.astype(scale.dtype))


@njit(cache=True, nogil=True)
def choose_views(draws: Array, room: tuple[int, int], flip: bool, corners: Array) -> None:
    """corners [n, 3] ← uniformly one of the (room + 1) positions in each direction, and 1 with probability ½."""
    for k in range(len(corners)):
        corners[k, 0] = int(draws[k, 0] * (room[0] + 1))
        corners[k, 1] = int(draws[k, 1] * (room[1] + 1))
        corners[k, 2] = 1 if flip and draws[k, 2] < 0.5 else 0


@njit(cache=True, nogil=True)
def choose_shifts(draws: Array, axes: Array, shifts: Array) -> None:
    """shifts [n, 3] ← Σ_i axes[:, i]·N(0, 1), normal numbers by Box and Muller from draws [n, 3:7]."""
    for k in range(len(shifts)):
        near, angle = np.sqrt(-2.0 * np.log(1.0 - draws[k, 3])), 2.0 * np.pi * draws[k, 4]
        far, other = np.sqrt(-2.0 * np.log(1.0 - draws[k, 5])), 2.0 * np.pi * draws[k, 6]
        first, second, third = near * np.cos(angle), near * np.sin(angle), far * np.cos(other)
        for c in range(3):
            shifts[k, c] = axes[c, 0] * first + axes[c, 1] * second + axes[c, 2] * third
