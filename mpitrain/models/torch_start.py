"""PyTorch is loaded by who needs it: it takes seconds, and need not be installed."""

import importlib
import sys

from mpitrain.errors import BadInput, first_line, missing


def require(key: str) -> None:
    """Load PyTorch. Raises BadInput naming the key that needs it."""
    try:
        importlib.import_module("torch")
    except Exception as error:
        if missing(error, "torch"):
            raise BadInput(f"{key}: needs PyTorch, which is not installed (the extra mpitrain[torch])") from None
        raise BadInput(f"{key}: PyTorch: {first_line(error)}") from error


def limit_threads(count: int) -> None:
    """Let PyTorch compute with so many threads, if it is loaded: it heeds no limit set before that."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
