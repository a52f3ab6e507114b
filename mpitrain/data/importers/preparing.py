"""The sources that one process prepares: `prepare digits | speech`."""

import argparse

from mpitrain.data import check
from mpitrain.data.digits import prepare_digits
from mpitrain.data.importers.plan import require_least
from mpitrain.data.importers.speech import prepare_speech
from mpitrain.data.importers.utterances import SpeechRecipe
from mpitrain.mpi.agreement import alone

ALONE = "this source is prepared without mpirun; it uses all cores of one node"


def digits(options: argparse.Namespace) -> int:
    """`prepare digits`."""
    return alone(lambda: prepare_digits(options.folder), ALONE) or check.run(options)


def speech(options: argparse.Namespace) -> int:
    """`prepare speech`."""
    require_least(options, classes=1, bins=3, jobs=1, seed=0)
    recipe = SpeechRecipe(options.language, options.bins, options.deltas, options.noise, options.seed)
    return alone(lambda: prepare_speech(options.folder, recipe, options.hours, options.classes, options.jobs), ALONE)
