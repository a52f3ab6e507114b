"""Who watches the order of a training's events: nobody, what records it, or what replays a recorded one."""

import hashlib
import platform
from pathlib import Path

import numpy as np

from mpitrain import __version__
from mpitrain import config as configuration
from mpitrain.cli.arguments import TrainOptions
from mpitrain.cli.setup import threads
from mpitrain.config import Config
from mpitrain.mpi import Transport, library
from mpitrain.mpi.recording import recorder
from mpitrain.mpi.witness import Witness
from mpitrain.training.context import Session


def witness_of(transport: Transport, config: Config, options: TrainOptions, folder: Path | None) -> Witness | None:
    """The witness of a training in this run folder, which the first rank knows. Collective; raises BadInput."""
    if transport.runtime.witness is not None or not config.run.record_order or options.resume:
        return transport.runtime.witness
    number, text = threads(config.run.threads, transport), configuration.to_toml(config)
    return recorder(transport, folder, number, made_by(), text)


def made_by() -> str:
    """What bits may depend on."""
    return f"mpitrain {__version__}, NumPy {np.__version__}, {library()}, {platform.machine()}"


def parameters(session: Session) -> str:
    """As in summary.json; of the first rank."""
    return "" if session.transport.rank else hashlib.sha256(session.state.little_endian()).hexdigest()
