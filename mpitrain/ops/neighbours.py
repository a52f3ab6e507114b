"""Sums over neighbouring channels, for local response normalisation."""

from numba import njit

from mpitrain.flat import Array


@njit(cache=True, nogil=True)
def channel_window_sum(x: Array, half: int, out: Array) -> None:
    """out[..., c] = Σ x[..., c'] over |c' − c| ≤ half, with channels outside counting as 0."""
    channels = x.shape[-1]
    rows, sums = x.reshape(-1, channels), out.reshape(-1, channels)
    for i in range(rows.shape[0]):
        for c in range(channels):
            total = rows[i, c]
            for other in range(max(0, c - half), c):
                total += rows[i, other]
            for other in range(c + 1, min(channels, c + half + 1)):
                total += rows[i, other]
            sums[i, c] = total
