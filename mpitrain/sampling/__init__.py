"""Which samples come next, so that each of an epoch is trained on exactly once."""
