"""`predict RUN DATA OUT`: write the outputs of a trained network for all samples of a part, for other programs."""

import argparse
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from mpitrain.data.corpus import Corpus
from mpitrain.data.shards import class_names
from mpitrain.errors import printable
from mpitrain.flat import Array
from mpitrain.models import torch_start
from mpitrain.monitoring.evaluation import TOGETHER
from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.trained.model import TrainedModel, built, find_together
from mpitrain.trained.pieces import follow, lead, pieces
from mpitrain.trained.posteriors import computing, priors_of
from mpitrain.trained.writers import Content, open_writer, require_known
from mpitrain.training.inputs import held_out


def predict(options: argparse.Namespace) -> int:
    """Predict and return the exit status. Collective: the samples are divided over the ranks, and rank 0 writes."""
    abort_on_exception()
    transport = Transport()
    return ending_together(transport, lambda: _predict(transport, options))


def _predict(transport: Transport, options: argparse.Namespace) -> int:
    def prepare() -> tuple[TrainedModel, Corpus, Array | None]:
        model = built(stored, code)
        part = options.part or next(iter(held_out(options.data)), "train")
        corpus = model.open(options.data, part, memory_limit=0)  # read once, sequentially
        return model, corpus, priors_of(model, options)

    agreed(transport, lambda: require_known(options.out), "the file to write")
    stored, code = find_together(transport, options)
    model, corpus, priors = agreed(transport, prepare, "the run and the data")
    transport.deadline = model.config.run.deadline
    compute = computing(model, corpus, options.output, priors)
    parts, classes = pieces(corpus.samples, TOGETHER), corpus.classes
    torch_start.limit_threads(transport.threads(model.config.run.threads))
    with threadpool_limits(transport.threads(model.config.run.threads)):
        if transport.rank == 0:
            with open_writer(options.out, content(model, corpus, options)) as writer:
                for rows in lead(transport, parts, classes, compute):
                    writer.write(rows)
            print(f"{options.out}: {options.output} of {corpus.samples:,} samples of part {corpus.part}")
        else:
            follow(transport, parts, classes, compute)
    transport.barrier("the end")
    return 0


def content(model: TrainedModel, corpus: Corpus, options: argparse.Namespace) -> Content:
    """The content of the file in addition to the rows."""
    offsets = np.arange(corpus.samples + 1) if corpus.utterances is None else corpus.utterances
    keys = corpus.keys or numbered(corpus.part, len(offsets) - 1)
    data = printable(str(Path(options.data)))
    about = {**model.described(), "data": data, "part": corpus.part, "output": options.output}
    names = model.origin.class_names or class_names(corpus.attributes)
    kind, offsets = options.output.replace("-", "_"), offsets.astype(np.int64)
    return Content(kind, corpus.classes, corpus.targets, offsets, keys, about, names)


def numbered(part: str, count: int) -> list[str]:
    """Names for unnamed utterances, in alphabetical order: test-0000000, test-0000001, …"""
    return [f"{part}-{number:07d}" for number in range(count)]
