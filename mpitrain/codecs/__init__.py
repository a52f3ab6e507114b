"""Arrays to wire bytes and back. No communication."""
