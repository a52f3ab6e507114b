"""Rectangles of settings as .csv or .png: the spectral radius over η and ρ, which is Figure 1 of Zhang, Choromanska &
LeCun 2015, and the variance of the centre over η and β."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpitrain.algorithms.stability.maps import method_named, spectral_radius
from mpitrain.algorithms.stability.variance import synchronous
from mpitrain.errors import library
from mpitrain.flat import Array

SUFFIXES = (".csv", ".png")


class Grid(NamedTuple):
    """`value` [n, n] at each (row, η), where `row` [n] is ρ or β, and `eta` [n]; `names`: of eta, row and value."""

    names: tuple[str, str, str]
    eta: Array
    row: Array
    value: Array

    def point(self, index: Any) -> dict[str, float]:
        """The three numbers at an index of the flattened values, by name."""
        row, column = np.unravel_index(index, self.value.shape)
        numbers = (self.eta[column], self.row[row], self.value[row, column])
        return {name: float(number) for name, number in zip(self.names, numbers, strict=True)}


def sweep(method: str, workers: int, size: int, momentum: float = 0.0) -> Grid:
    """Spectral radius at the centres of size × size cells of η ∈ (0, 10⁻²), ρ ∈ (0, 10).

    The moving rate of EASGD and EAMSGD is α = ηρ.
    """
    inside, of = _inside(size), method_named(method, momentum)
    eta, rho = 1e-2 * inside, 10 * inside
    # by rows: at p = 64 a row of 100 maps takes 13 MB, all of them 1.3 GB
    radius = [spectral_radius(of, workers, eta, np.float64(r) if method == "admm" else r * eta) for r in rho]
    return Grid(("eta", "rho", "spectral_radius"), eta, rho, np.stack(radius))


def variances(workers: int, size: int, momentum: float) -> Grid:
    """Stationary variance of the synchronous scheme's centre over η ∈ (0, 1), β ∈ (0, 1)."""
    inside = _inside(size)
    value = [[synchronous(workers, eta, beta / workers, momentum).centre for eta in inside] for beta in inside]
    return Grid(("eta", "beta", "centre_variance"), inside, inside, np.array(value))


def _inside(size: int) -> Array:
    return (np.arange(size) + 0.5) / size


def write(path: Path, grid: Grid, method: str, workers: int) -> None:
    """A .csv with a line for every point, or a picture. Raises BadInput for a picture without matplotlib."""
    if path.suffix == ".csv":
        eta, row = np.meshgrid(grid.eta, grid.row)
        table = np.column_stack([eta.ravel(), row.ravel(), grid.value.ravel()])
        np.savetxt(path, table, delimiter=",", fmt="%.17g", header=",".join(grid.names), comments="")
        return
    library("matplotlib", "--out: a .png needs matplotlib (a .csv does not)", "plots")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.4), dpi=120, layout="constrained")
    draw = _draw_radius if grid.names[-1] == "spectral_radius" else _draw_variance
    draw(figure, grid, method, workers)
    figure.savefig(path)


def _draw_radius(figure: Any, grid: Grid, method: str, workers: int) -> None:
    """Draw in blue where a round contracts, in red where it diverges, and a black line between."""
    from matplotlib.colors import TwoSlopeNorm

    lowest, highest = grid.value.min(), grid.value.max()
    margin = max(0.05 * (1 - lowest), 1e-6)  # the scale must reach both sides of 1
    low, high = min(lowest, 1 - margin), max(highest, 1 + margin)
    axes, eta, norm = figure.add_subplot(), 1e3 * grid.eta, TwoSlopeNorm(1.0, low, high)
    mesh = axes.pcolormesh(eta, grid.row, grid.value, norm=norm, cmap="RdBu_r", rasterized=True)
    if lowest < 1 < highest:
        axes.contour(eta, grid.row, grid.value, levels=[1.0], colors="black", linewidths=1.2)
    if method == "admm":
        axes.plot(1, 2.5, "kx", label="η = 0.001, ρ = 2.5")
        axes.legend(loc="upper right")
    axes.set(xlabel="learning rate η  [10⁻³]", ylabel="penalty ρ", xlim=(0, 10), ylim=(0, 10))
    axes.set_title(f"Round-robin {method.upper()} on x²/2, p = {workers}")
    ticks = [*np.linspace(low, 1, 5), *np.linspace(1, high, 5)[1:]]
    figure.colorbar(mesh, label="spectral radius of a round", format="%.4f", ticks=ticks)


def _draw_variance(figure: Any, grid: Grid, method: str, workers: int) -> None:
    """Draw with contour lines, and unstable settings in grey."""
    from matplotlib.colors import LogNorm

    axes, value = figure.add_subplot(facecolor="lightgrey"), np.ma.masked_invalid(grid.value)
    mesh = axes.pcolormesh(grid.eta, grid.row, value, norm=LogNorm(), cmap="viridis", rasterized=True)
    levels = [digit * 10.0**power for power in range(-5, 2) for digit in (1, 2, 5)]
    lines = axes.contour(grid.eta, grid.row, value, levels=levels, colors="white", linewidths=0.8)
    axes.clabel(lines, fmt="%g", fontsize=7)
    axes.set(xlabel="learning rate η", ylabel="β = pα", xlim=(0, 1), ylim=(0, 1))
    axes.set_title(f"Synchronous {method.upper()} on x²/2, p = {workers}")
    figure.colorbar(mesh, label="variance of the centre / variance of a gradient")
