"""Encode arrays to the bytes of messages, and decode them. No communication."""
