"""`evaluate RUN [DATA]`: loss and error of a trained network on held-out parts, with the code that training uses."""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from mpitrain.errors import BadInput, printable
from mpitrain.files import write_whole
from mpitrain.models.torch import start as torch_start
from mpitrain.monitoring.evaluation import Evaluation, Results, share_of
from mpitrain.monitoring.records import merit_of, shown
from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.trained.blocks import blocks_text
from mpitrain.trained.model import TrainedModel, built, find_together
from mpitrain.training.parts import Part, epoch_of, held_out


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate and return the exit status. Collective: the samples are divided over the ranks."""
    abort_on_exception()
    transport = Transport()
    return ending_together(transport, lambda: _evaluate(transport, options))


def _evaluate(transport: Transport, options: argparse.Namespace) -> int:
    def prepare() -> tuple[TrainedModel, dict[str, Part]]:
        model = built(stored, code)
        return model, open_parts(model, options.data, options.part)

    stored, code = find_together(transport, options)
    model, corpora = agreed(transport, prepare, "the run and the data")
    transport.deadline = model.config.run.deadline
    shares = {part: share_of(corpus, transport.rank, transport.size) for part, corpus in corpora.items()}
    torch_start.limit_threads(transport.threads(model.config.run.threads))
    with threadpool_limits(transport.threads(model.config.run.threads)):
        if options.blocks is not None:
            return _write_blocks(transport, model, corpora, options.blocks)
        evaluation = Evaluation(
            model.network,
            shares,
            model.parameters.dtype,
            time.monotonic,
            slices=False,
            total=lambda sums: transport.sum(sums, "the evaluation"),
        )
        results = evaluation.run(model.parameters)
    if transport.rank == 0:
        samples = {part: corpus.samples for part, corpus in corpora.items()}
        own = model.config.data
        data = printable(str(options.data or own.import_ or own.path or "embedded digits"))
        if options.json:
            print(json.dumps({**model.described(), "data": data, "samples": samples, **results}))
        else:
            _print(model, data, samples, results)
    transport.barrier("the end")
    return 0


def _write_blocks(transport: Transport, model: TrainedModel, corpora: dict[str, Part], path: Path) -> int:
    text = blocks_text(transport, model, corpora)
    agreed(transport, lambda: write_whole(path, text) if transport.rank == 0 else None, "the file of blocks")
    return 0


def open_parts(model: TrainedModel, path: Path | None, names: list[str] | None) -> dict[str, Part]:
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
    figures = [name for name in dict.fromkeys(("loss", "error", merit)) if f"{first}_{name}" in results]
    for heading in ("samples", *map(shown, figures)):
        table.add_column(heading, justify="right")
    for part, count in samples.items():
        key = part.replace("-", "_")
        values = (format(results[f"{key}_{name}"], ".2%" if name == "error" else ".4f") for name in figures)
        table.add_row(part, f"{count:,}", *values)
    Console(highlight=False).print(table)
