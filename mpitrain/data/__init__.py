"""Shards, corpora, samplers, and one module a source."""
