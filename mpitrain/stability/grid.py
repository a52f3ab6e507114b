"""Spectral radius over η ∈ (0, 10⁻²) and ρ ∈ (0, 10): Figure 1 of Zhang, Choromanska & LeCun 2015, as .csv or .png."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.stability.maps import Map, admm, easgd, spectral_radius


class Grid(NamedTuple):
    """`eta` [n], `rho` [n], `radius` [n, n] indexed by (ρ, η)."""

    eta: Array
    rho: Array
    radius: Array


def sweep(method: Map, workers: int, size: int) -> Grid:
    """Radius at the centres of size × size cells of the rectangle. EASGD's moving rate is α = ηρ."""
    inside = (np.arange(size) + 0.5) / size
    eta, rho = 1e-2 * inside, 10 * inside
    # by rows: at p = 64 a row of 100 maps takes 13 MB, all of them 1.3 GB
    radius = np.stack([spectral_radius(method, workers, eta, r * eta if method is easgd else r) for r in rho])
    return Grid(eta, rho, radius)


def write_csv(path: Path, grid: Grid, method: Map, workers: int) -> None:
    """Write columns eta, rho, spectral_radius, with a line for every point."""
    eta, rho = np.meshgrid(grid.eta, grid.rho)
    table = np.column_stack([eta.ravel(), rho.ravel(), grid.radius.ravel()])
    np.savetxt(path, table, delimiter=",", fmt="%.17g", header="eta,rho,spectral_radius", comments="")


def write_png(path: Path, grid: Grid, method: Map, workers: int) -> None:
    """Plot in blue where a round contracts and red where it diverges, with a black line between. Raises BadInput
    without matplotlib."""
    try:
        from matplotlib.colors import TwoSlopeNorm
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("--out: a .png needs matplotlib (the extra mpitrain[plots]); .csv does not") from None
    lowest, highest = grid.radius.min(), grid.radius.max()
    margin = max(0.05 * (1 - lowest), 1e-6)  # the scale must reach both sides of 1
    low, high = min(lowest, 1 - margin), max(highest, 1 + margin)
    figure = Figure(figsize=(5.6, 4.4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    eta = 1e3 * grid.eta
    norm = TwoSlopeNorm(1.0, low, high)
    mesh = axes.pcolormesh(eta, grid.rho, grid.radius, norm=norm, cmap="RdBu_r", rasterized=True)
    if lowest < 1 < highest:
        axes.contour(eta, grid.rho, grid.radius, levels=[1.0], colors="black", linewidths=1.2)
    if method is admm:
        axes.plot(1, 2.5, "kx", label="η = 0.001, ρ = 2.5")
        axes.legend(loc="upper right")
    axes.set(xlabel="learning rate η  [10⁻³]", ylabel="penalty ρ", xlim=(0, 10), ylim=(0, 10))
    axes.set_title(f"Round-robin {method.__name__.upper()} on x²/2, p = {workers}")
    ticks = [*np.linspace(low, 1, 5), *np.linspace(1, high, 5)[1:]]
    figure.colorbar(mesh, label="spectral radius of a round", format="%.4f", ticks=ticks)
    figure.savefig(path)


#: Writers by file name extension; all take (path, grid, method, workers).
WRITERS = {".csv": write_csv, ".png": write_png}
