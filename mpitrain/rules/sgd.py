"""Sequential SGD and its momentum forms (Zhang, Choromanska & LeCun 2015, §5; Krizhevsky 2014, §5).

As in all rules of this package, arrays are slices of flat vectors of one dtype and one length, which are changed in
place; `scratch` is overwritten; scalars are Python floats (a NumPy scalar would widen float32). A momentum of 0 gives
the bits of the rule without momentum, since x + (−ηg) and x − ηg are the same number.
"""

import numpy as np

from mpitrain.flat import Array


def sgd(theta: Array, g: Array, scratch: Array, *, eta: float) -> None:
    """A step of SGD, with the same bits as `server.update` with μ = 0 and α = 1."""
    # θ ← θ − ηg
    np.multiply(g, eta, out=scratch)
    np.subtract(theta, scratch, out=theta)


def accelerate(v: Array, g: Array, scratch: Array, *, eta: float, mu: float) -> None:
    """The update of the velocity, which all momentum rules share."""
    # v ← μv − ηg
    if mu == 0.0:
        np.multiply(g, -eta, out=v)  # without v: 0·v is −0 or nan for some v
    else:
        np.multiply(g, eta, out=scratch)
        np.multiply(v, mu, out=v)
        np.subtract(v, scratch, out=v)


def look_ahead(out: Array, x: Array, v: Array, mu: float) -> None:
    """The point at which Nesterov's gradient is taken."""
    # out ← x + μv
    np.multiply(v, mu, out=out)
    np.add(out, x, out=out)


def classical(theta: Array, v: Array, g: Array, scratch: Array, *, eta: float, mu: float) -> None:
    """Classical momentum: `g` is the gradient at θ."""
    # v ← μv − ηg(θ)
    accelerate(v, g, scratch, eta=eta, mu=mu)
    # θ ← θ + v
    np.add(theta, v, out=theta)


def nesterov(theta: Array, v: Array, g: Array, scratch: Array, *, eta: float, mu: float) -> None:
    """Nesterov's momentum (Sutskever et al. 2013): `g` is the gradient at θ + μv, which `look_ahead` gives.

    The statements are those of `classical`; only the point of the gradient differs.
    """
    # v ← μv − ηg(θ + μv);  θ ← θ + v
    classical(theta, v, g, scratch, eta=eta, mu=mu)


def krizhevsky(w: Array, inc: Array, g: Array, scratch: Array, *, eta: float, mu: float, decay: float) -> None:
    """Krizhevsky's rule with decay ω; `g` is the minibatch mean of ∂E/∂w, without l2.

    ω = 0 gives the bits of `classical`.
    """
    # inc ← μ·inc − ω·ε·w + ε·⟨−∂E/∂w⟩
    accelerate(inc, g, scratch, eta=eta, mu=mu)
    if decay:
        np.multiply(w, decay * eta, out=scratch)
        np.subtract(inc, scratch, out=inc)
    # w ← w + inc
    np.add(w, inc, out=w)
