"""Errors a user can mend."""


class BadInput(ValueError):
    """Input that cannot be used: one line that names the file or the key. The program prints it and exits with status 2."""
