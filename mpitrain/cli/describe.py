"""`python -m mpitrain describe [CONFIG]`: the network of a configuration, layer by layer, or a module's parameters."""

import argparse
import platform
import re
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from rich.table import Table
from threadpoolctl import threadpool_limits

from mpitrain import config as configuration
from mpitrain.algorithms import name_of
from mpitrain.config import Config
from mpitrain.console import open_plain
from mpitrain.errors import BadInput, some
from mpitrain.models import design as designs
from mpitrain.models import presets
from mpitrain.models.layer import Shape
from mpitrain.models.layers import AnyLayer
from mpitrain.models.model import Draws
from mpitrain.models.network import Network, network_of_layers
from mpitrain.sampling.batch import SampleForm
from mpitrain.sampling.rng import stream
from mpitrain.start import processor, usable_cores
from mpitrain.training.inputs import code_of, design_of, network_of
from mpitrain.training.parts import form_of, source_of
from mpitrain.training.step_times import Way, steps, timed, ways


def run(options: argparse.Namespace) -> None:
    """Print the table. Raises BadInput naming the key, the option or the folder that does not fit."""
    config = configuration.load(options.config, options.set)
    if config.model.import_ and options.config and (options.config.parent / "metrics.jsonl").exists():
        raise BadInput(
            f"{options.config}: of a run, whose code is not executed: give the file that it was started with"
        )
    own, own_classes = _inputs(config)
    form = _form(options.input, config) if options.input else own
    shape, classes = form.shape, own_classes if options.classes is None else options.classes
    model = network_of(config, form, classes)
    if config.model.import_:
        print(
            f"{model.name}: inputs of {_times(shape)}" + (f", {classes:,} classes, {model.output}" if classes else "")
        )
        table, lines = _module(model, config)
    else:
        network, design = network_of_layers(model, "layers", "describe"), design_of(config)
        penalty = f"l2 {network.l2:g}{' of all parameters' if network.l2 and network.l2_biases else ''}"
        print(f"{network.name}: inputs of {_times(shape)}, {classes:,} classes, {network.output}, {penalty}")
        table, lines = layers_table(network, designs.complete(design.layers, classes, design.output)), []
    open_plain().print(table)
    for line in chain(lines, _step_times(config, form, classes) if options.time else ()):
        print(line)


def _step_times(config: Config, form: SampleForm, classes: int) -> Iterator[str]:
    """A line for each way in which the network can be computed here: what a step takes."""
    every = Way("torch" if config.model.import_ else "auto", "auto").of(config)
    of = [way for way in ways(every) if way.backend == "numpy" or find_spec("torch")]
    threads = config.run.threads or usable_cores()
    with threadpool_limits(threads):
        times = timed("", steps(config, of, form, classes, threads), config.training.minibatch)
    name = processor().get("model name", platform.machine())
    yield f"a step of {some(times.samples, 'sample')} on {some(threads, 'thread')}, {name}:"
    for way, seconds in zip(of, times.seconds, strict=True):
        yield f"{way!s:<16} {1e3 * seconds:9,.2f} ms {seconds / min(times.seconds):6.2f}"


def _module(model: Any, config: Config) -> tuple[Table, list[str]]:
    """A row for each parameter of a module; lines about its memory, and about a trial with random numbers."""
    theta = model.initial(config.initial_seed, config.training.dtype)
    gradient = np.empty_like(theta)
    batch = model.form.drawn(2, theta.dtype, model.classes, stream(0, "examination"))
    loss = float(model.loss_and_gradient(theta, gradient, batch, Draws(stream(0, "dropout"))))
    rows = Table("parameter", "shape", box=None, pad_edge=False, show_footer=True)
    rows.columns[0].footer = "total"
    rows.add_column("number", f"{theta.size:,}", justify="right")
    rows.add_column("")
    for each in model.layout.parameters:
        used = model.layout.views(gradient)[each.name].any()
        rows.add_row(each.name, _times(each.shape), f"{each.size:,}", "" if used else "the trial's gradient is 0")
    for name, array in model.kept(theta).items():
        rows.add_row(name, _times(array.shape), f"({array.size:,})", "constant")
    megabytes, vectors = theta.nbytes / 1e6, config.algorithm.vectors()
    norm = f"the gradient's norm {np.linalg.norm(gradient):.3g}"
    return rows, [
        f"memory: {name_of(config.algorithm)} keeps {vectors} vectors of {megabytes:,.2f} MB on each rank",
        f"trial: 2 samples of random numbers forward and backward; the loss is {loss:.4g}, {norm}",
    ]


def layers_table(network: Network, tables: list[AnyLayer]) -> Table:
    """A row for each layer: what it is, the shape of its output, parameters and multiply-adds for one sample."""
    rows = Table("layer", "", box=None, pad_edge=False, show_footer=True)
    parameters = [sum(parameter.size for parameter in layer.parameters) for layer in network.layers]
    operations = [layer.operations for layer in network.layers]
    rows.columns[0].footer, rows.columns[0].no_wrap = "total", True
    totals = {"output": "", "parameters": f"{sum(parameters):,}", "multiply-adds": f"{sum(operations):,}"}
    for heading, total in totals.items():
        rows.add_column(heading, total, justify="right", no_wrap=True)
    for layer, listed, size, count in zip(network.layers, tables, parameters, operations, strict=True):
        rows.add_row(layer.name, _settings(listed), _times(layer.output_shape), f"{size:,}", f"{count:,}")
    return rows


def _settings(layer: AnyLayer) -> str:
    """The keys that are not at their defaults."""
    said = msgspec.to_builtins(layer)
    plain = {field.name: field.default for field in msgspec.structs.fields(layer)}
    told = {key: said[key] for key in plain if said[key] != plain[key]}
    return ", ".join(f"{key} {value if isinstance(value, str) else format(value, 'g')}" for key, value in told.items())


def _inputs(config: Config) -> tuple[SampleForm, int]:
    """Form of a sample and number of classes: those of the data or, without data, those that a preset is made for."""
    if not (config.data.path or config.data.import_) and config.model.preset in presets.PRESETS:
        known = presets.PRESETS[config.model.preset]
        return SampleForm(known.inputs), known.classes
    of = source_of(config, code_of(config)).origin()
    return form_of(config, of), of.classes


def _form(text: str, config: Config) -> SampleForm:
    if not re.fullmatch(r"[1-9]\d{0,6}(x[1-9]\d{0,6}){0,2}", text):
        raise BadInput(f"--input {text}: expected numbers, such as 28x28x3 for images, 11x40 for windows of frames")
    shape = tuple(map(int, text.split("x")))
    return SampleForm(shape, pixels=len(shape) == 3 and not config.data.import_)


def _times(shape: Shape) -> str:
    return " x ".join(map(str, shape))
