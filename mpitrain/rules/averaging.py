"""Averages of the parameters over time: ASGD and MVASGD, ADOWNPOUR and MVADOWNPOUR.

Zhang, Choromanska & LeCun 2015, §5: z ← (1 − a)z + aθ, z₀ = θ₀. It is computed as z + a(θ − z): rounded to float32,
1 − a and a do not add up to 1, and for small a the average of a constant would differ from that constant.
"""

import numpy as np

from mpitrain.flat import Array


def moving_average(z: Array, theta: Array, scratch: Array, *, rate: float) -> None:
    """An average with a constant moving rate in (0, 1] (MVASGD; MVADOWNPOUR uses 0.001)."""
    # z ← (1 − a)z + aθ
    np.subtract(theta, z, out=scratch)
    np.multiply(scratch, rate, out=scratch)
    np.add(z, scratch, out=z)


def running_average(z: Array, theta: Array, scratch: Array, *, t: int) -> None:
    """Mean of θ₀ … θ_t (Polyak & Juditsky; ASGD, ADOWNPOUR), given that of θ₀ … θ_{t−1}; t counts from 0."""
    # z ← (1 − 1/(t+1))z + θ/(t+1)
    moving_average(z, theta, scratch, rate=1.0 / (t + 1))
