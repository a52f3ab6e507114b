"""`python -m tests.search`, and `python -m tests.search lost`."""

import sys

from . import lost, main

if sys.argv[1:2] == ["lost"]:
    sys.exit(lost.main(sys.argv[2:]))
main()
