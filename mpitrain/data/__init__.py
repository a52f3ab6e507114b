"""Shards, and the corpora that are read from them."""
