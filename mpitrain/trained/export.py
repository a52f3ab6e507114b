"""`export RUN --format npz|safetensors|onnx`: write a trained network to a file for other programs."""

import argparse
import hashlib
import io
import json
from collections.abc import Callable

import msgspec
import numpy as np

from mpitrain import __version__
from mpitrain import config as configuration
from mpitrain.errors import BadInput, first_line, library
from mpitrain.files import write_whole
from mpitrain.flat import Array
from mpitrain.models.network import Network
from mpitrain.trained import onnx_check, onnx_graph
from mpitrain.trained.model import TrainedModel, load
from mpitrain.trained.posteriors import priors_of
from mpitrain.training.parts import form_of


def export(options: argparse.Namespace) -> int:
    """Write the file; return 0. Raises BadInput naming option, file or missing library, TrainingFailed if the file
    would differ from the network."""
    if options.format not in WRITERS:
        raise BadInput(f"--format {options.format}: unknown; known: {', '.join(WRITERS)}")
    if options.format != "onnx":
        _require_plain(options)
    model = load(options.run_folder, options.checkpoint, exact=True, trust=options.trust, new_code=options.new_code)
    path = options.out or options.run_folder / f"model.{options.format}"
    if path.is_dir():
        raise BadInput(f"{path}: is a folder")
    content, said = WRITERS[options.format](model, options)
    write_whole(path, content)
    print(f"{path}: checkpoint {model.checkpoint.name}, {model.network.layout.size:,} parameters{said}")
    return 0


def metadata(model: TrainedModel) -> dict[str, str]:
    """Metadata for users of the file, all of it text: structures are JSON, the configuration TOML."""
    text = configuration.to_toml(model.config)
    origin = msgspec.to_builtins(model.origin)
    apart = {key: json.dumps(origin.pop(key)) for key in ("class_counts", "class_names", "preparation")}
    del origin["folder"]  # a local path, which is meaningless outside the run folder
    return {
        "program": f"mpitrain {__version__}",
        "preset": model.config.model.preset or "",
        "classes": str(model.origin.classes),
        "output": model.network.output,
        "normalise": model.config.data.normalise,
        "context": json.dumps(model.config.data.context),
        "crop": str(model.config.data.crop),
        "input": json.dumps(origin),
        **apart,
        "input_shape": json.dumps(list(form_of(model.config, model.origin).shape)),
        **{name: str(value) for name, value in model.described().items()},
        "config": text,
        "config_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def named(model: TrainedModel) -> tuple[dict[str, Array], str]:
    """The parameters by name, as little-endian float32, whose concatenation has the SHA-256 in the run's summary; for a
    PyTorch module all tensors of its state_dict, and the end of a message that names entries that are no tensors."""
    if isinstance(model.network, Network):
        return model.network.layout.views(np.ascontiguousarray(model.parameters, "<f4")), ""
    import torch

    from mpitrain.models.torch import state as torch_state
    from mpitrain.models.torch.module import standalone

    state = torch_state.cast(standalone(model.network, model.parameters), torch.float32).state_dict()
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    left = sorted(state.keys() - tensors.keys())
    said = f"; without {', '.join(left)}, which is no tensor" if left else ""
    # in the order of their elements, also where they lie otherwise, as transposed: safetensors writes what lies there
    return {name: np.asarray(torch_state.numbers(tensor), order="C") for name, tensor in tensors.items()}, said


def _npz(model: TrainedModel, options: argparse.Namespace) -> tuple[bytes, str]:
    buffer = io.BytesIO()
    arrays, said = named(model)
    if taken := arrays.keys() & {"metadata", "file"}:
        raise BadInput(f"--format npz: {min(taken)}: not a name for a parameter there; safetensors holds it")
    np.savez(buffer, metadata=np.array(json.dumps(metadata(model))), **arrays)
    return buffer.getvalue(), said


def _safetensors(model: TrainedModel, options: argparse.Namespace) -> tuple[bytes, str]:
    safetensors = library("safetensors.numpy", "--format safetensors needs safetensors (npz does not)", "safetensors")
    arrays, said = named(model)
    try:
        return safetensors.save(arrays, metadata(model)), said
    except Exception as error:  # older versions of safetensors have no complex numbers
        raise BadInput(f"--format safetensors: {first_line(error)} (npz holds it)") from error


def _onnx(model: TrainedModel, options: argparse.Namespace) -> tuple[bytes, str]:
    model.require_rows("--format onnx")
    priors = priors_of(model, options)
    serialise, opset = onnx_graph.serialise, onnx_graph.OPSET
    if not isinstance(model.network, Network):
        from mpitrain.trained import onnx_torch

        serialise, opset = onnx_torch.serialise, onnx_torch.OPSET
    opset = opset if options.opset is None else options.opset
    graph = onnx_graph.GraphOptions(options.output, opset, options.input, priors)
    content = serialise(model, graph, metadata(model) | {"values": options.output})
    said = onnx_check.checked(model, content, graph, options.check, options.data)
    if (normalise := model.config.data.normalise) in ("speaker", "utterance"):
        said = f"; takes features that are normalised by {normalise}{said}"
    return content, said


def _require_plain(options: argparse.Namespace) -> None:
    for name in ("opset", "input", "check", "data", "priors", "smoothing"):
        if getattr(options, name) not in (None, False):  # --no-check sets False
            raise BadInput(f"--{name}: only for --format onnx")
    if options.output != "posteriors":
        raise BadInput(f"--output {options.output}: only for --format onnx; {options.format} holds the parameters")


Writer = Callable[[TrainedModel, argparse.Namespace], tuple[bytes, str]]
WRITERS: dict[str, Writer] = {"safetensors": _safetensors, "onnx": _onnx, "npz": _npz}
