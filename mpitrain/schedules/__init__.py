"""Orders of work as pure generators: no arrays, no messages."""
