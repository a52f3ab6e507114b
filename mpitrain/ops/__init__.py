"""Single-pass loops that NumPy lacks, compiled by Numba, each beside what it computes."""
