"""Sums over neighbouring channels, for local response normalisation."""

from numba import njit

from mpitrain.flat import Array


@njit(cache=True, nogil=True)
def channel_window_sum(x: Array, half: int, out: Array) -> None:
    """out[..., c] = Σ x[..., c'] over |c' − c| ≤ half, with channels outside counting as 0."""
    channels = x.shape[-1]
    rows, sums = x.reshape(-1, channels), out.reshape(-1, channels)
    for i in range(rows.shape[0]):
        row, total = rows[i], sums[i]
        for c in range(channels):
            total[c] = row[c]
        for distance in range(1, min(half, channels - 1) + 1):
            above, far = row[distance:], total[distance:]
            for c in range(channels - distance):
                total[c] += above[c]
            for c in range(channels - distance):
                far[c] += row[c]
