"""Decide which samples come next, so that each sample of an epoch is trained on exactly once."""
