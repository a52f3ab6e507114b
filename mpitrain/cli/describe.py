"""`python -m mpitrain describe [CONFIG]`: the network of a configuration, layer by layer."""

import argparse
import re

import msgspec
from rich.console import Console
from rich.table import Table

from mpitrain import config as configuration
from mpitrain.config import Config
from mpitrain.data import origin
from mpitrain.errors import BadInput
from mpitrain.models import design as designs
from mpitrain.models import presets
from mpitrain.models.layer import Shape
from mpitrain.models.layers import AnyLayer
from mpitrain.models.network import Network, network_of_layers
from mpitrain.training.inputs import data_path, design_of, network_of, seen_shape


def run(options: argparse.Namespace) -> int:
    """Print the table. Raises BadInput naming the key, the option or the folder that does not fit."""
    config = configuration.load(options.config, options.set)
    (own, own_classes), design = _inputs(config), design_of(config)
    shape = _shape(options.input) if options.input else own
    classes = own_classes if options.classes is None else options.classes
    network = network_of_layers(network_of(config, shape, classes), "layers", "describe")
    penalty = f"l2 {network.l2:g}{' of all parameters' if network.l2 and network.l2_biases else ''}"
    print(f"{network.name}: inputs of {_times(shape)}, {classes:,} classes, {network.output}, {penalty}")
    Console(highlight=False).print(layers_table(network, designs.complete(design.layers, classes, design.output)))
    return 0


def layers_table(network: Network, tables: list[AnyLayer]) -> Table:
    """A row for each layer: what it is, the shape of its output, parameters and multiply-adds for one sample."""
    rows = Table("layer", "", box=None, pad_edge=False, show_footer=True)
    parameters = [sum(parameter.size for parameter in layer.parameters) for layer in network.layers]
    operations = [layer.operations for layer in network.layers]
    rows.columns[0].footer = "total"
    for heading, total in (
        ("output", ""),
        ("parameters", f"{sum(parameters):,}"),
        ("multiply-adds", f"{sum(operations):,}"),
    ):
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


def _inputs(config: Config) -> tuple[Shape, int]:
    """Shape of an input and number of classes: the data's, or without data those a preset is made for."""
    if not config.data.path and config.model.preset in presets.PRESETS:
        known = presets.PRESETS[config.model.preset]
        return known.inputs, known.classes
    of = origin.of_part(data_path(config))
    return seen_shape(config, of), of.classes


def _shape(text: str) -> Shape:
    if not re.fullmatch(r"[1-9]\d{0,6}(x[1-9]\d{0,6}){0,2}", text):
        raise BadInput(f"--input {text}: expected numbers, such as 28x28x3 for images, 11x40 for windows of frames")
    return tuple(map(int, text.split("x")))


def _times(shape: Shape) -> str:
    return " x ".join(map(str, shape))
