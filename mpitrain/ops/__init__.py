"""Residuals and the digests of their deltas."""
