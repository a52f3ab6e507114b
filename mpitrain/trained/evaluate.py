"""`evaluate RUN [DATA]`: loss and error of a trained network on held-out parts, with the code that training uses.

With --blocks it writes sums over blocks of neighbouring samples instead, which `compare` resamples in pairs.
Neighbours, such as the frames of a phone or the windows of a file, tend to be wrong together, so that resampling single
samples would show too small a standard error.
"""

import argparse
import json
import time
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
from rich.table import Table

from mpitrain.console import open_plain
from mpitrain.errors import BadInput, printable
from mpitrain.files import write_whole
from mpitrain.flat import Array, block_slices, share
from mpitrain.monitoring.evaluation import TOGETHER, Evaluation, Results, figures, share_of
from mpitrain.monitoring.records import merit_of, or_null, shown
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed, by_all_ranks
from mpitrain.trained.model import TrainedModel, opened
from mpitrain.training.parts import Part, epoch_of, held_out

BLOCKS = 1000  # blocks of a part, or fewer if it has fewer samples


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate and return the exit status. Collective: the samples are divided over the ranks."""
    return by_all_ranks(lambda transport: _evaluate(transport, options))


def _evaluate(transport: Transport, options: argparse.Namespace) -> int:
    with opened(transport, options, lambda model: _parts(model, options.data, options.part)) as (model, corpora):
        if options.blocks is not None:
            return _write_blocks(transport, model, corpora, options.blocks)
        shares = {part: share_of(corpus, transport.rank, transport.size) for part, corpus in corpora.items()}
        total, dtype = partial(transport.sum, what="the evaluation"), model.parameters.dtype
        evaluation = Evaluation(model.network, shares, dtype, time.monotonic, slices=False, total=total)
        results = evaluation.run(model.parameters)
    if transport.rank == 0:
        samples = {part: corpus.samples for part, corpus in corpora.items()}
        own = model.config.data
        data = printable(str(options.data or own.import_ or own.path or "embedded digits"))
        if options.json:
            measured = {key: or_null(value) for key, value in results.items()}
            print(json.dumps({**model.described(), "data": data, "samples": samples, **measured}))
        else:
            _print(model, data, samples, results)
    transport.barrier("the end")
    return 0


def _parts(model: TrainedModel, path: Path | None, names: list[str] | None) -> dict[str, Part]:
    """The named parts, or all held-out ones. Raises BadInput naming data without any."""
    source = model.source(path)
    wanted = names or held_out(source.parts())
    if not wanted:
        raise BadInput(f"{source}: has no held-out part; --part train evaluates what it has")
    return {part: source.opened(part, model.origin) for part in wanted}


def _print(model: TrainedModel, data: str, samples: dict[str, int], results: Results) -> None:
    epochs = model.samples / epoch_of(model.config, model.origin)
    print(f"{printable(str(model.run))}, checkpoint {model.checkpoint.name} (epoch {epochs:.2f}), on {data}")
    table = Table("part", box=None, pad_edge=False)
    merit, first = merit_of(results), next(iter(samples)).replace("-", "_")
    columns = [name for name in dict.fromkeys(("loss", "error", merit)) if f"{first}_{name}" in results]
    for heading in ("samples", *map(shown, columns)):
        table.add_column(heading, justify="right")
    for part, count in samples.items():
        key = part.replace("-", "_")
        values = (format(results[f"{key}_{name}"], ".2%" if name == "error" else ".4f") for name in columns)
        table.add_row(part, f"{count:,}", *values)
    open_plain().print(table)


# ---- sums over blocks of samples


def _write_blocks(transport: Transport, model: TrainedModel, parts: Mapping[str, Part], path: Path) -> int:
    """Write, as JSON by part, the lists `samples` and `loss`, `error`, … (sums) of the blocks; return 0. Collective."""
    text = json.dumps({part: _figures(transport, model, corpus) for part, corpus in parts.items()}) + "\n"
    agreed(transport, lambda: write_whole(path, text) if transport.rank == 0 else None, "the file of blocks")
    return 0


def _figures(transport: Transport, model: TrainedModel, corpus: Part) -> dict[str, list[float]]:
    blocks = min(BLOCKS, corpus.samples)
    sums = np.zeros((3, blocks))
    for block in range(transport.rank, blocks, transport.size):
        own = share(corpus.samples, block, blocks)
        sums[:, block] = *_evaluated(model, corpus, own), own.stop - own.start
    transport.sum(sums.reshape(-1), "the evaluation")
    loss, figure, samples = sums
    found = {"samples": samples, **figures(model.network, corpus.form, loss, figure)}
    return {name: values.tolist() for name, values in found.items()}


def _evaluated(model: TrainedModel, corpus: Part, block: slice) -> Array:
    """The loss and the figure of merit, each summed over the samples of a block: float64 [2]."""
    most = max(1, TOGETHER // prod(corpus.form.targets))
    sums, room = np.zeros(2), corpus.form.room(most, model.parameters.dtype)
    for each in block_slices(block, most):
        indices = np.arange(each.start, each.stop)
        batch = corpus.gather(indices, room.first(len(indices)))
        sums += model.network.evaluate(model.parameters, batch)
    return sums
