"""Sparse deltas: a residual becomes entries, and these the bytes of messages; and back. No communication."""
