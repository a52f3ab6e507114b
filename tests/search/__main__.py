"""`python -m tests.search`."""

from . import main

main()
