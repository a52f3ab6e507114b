"""Averages of the parameters over time: ASGD and MVASGD, ADOWNPOUR and MVADOWNPOUR.

Zhang, Choromanska & LeCun 2015, §5. The mean of θ₀ … θ_t (Polyak & Juditsky) is the average with the rate
a = 1/(t + 1), t counting from 0.
"""

import numpy as np

from mpitrain.flat import Array


def moving_average(z: Array, theta: Array, scratch: Array, *, rate: float) -> None:
    """Move the average z by a rate a in (0, 1].

    It is computed as z + a(θ − z): rounded to float32, 1 − a and a do not add up to 1, and for small a the average of a
    constant would differ from that constant.
    """
    # z ← (1 − a)z + aθ
    np.subtract(theta, z, out=scratch)
    np.multiply(scratch, rate, out=scratch)
    np.add(z, scratch, out=z)
