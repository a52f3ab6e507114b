"""A trained PyTorch module as a complete ONNX graph, as onnx_graph.py makes one of our own layers: from raw features or
pixels to posteriors. torch.onnx translates the module itself."""

import logging
import warnings

import numpy as np
import torch

from mpitrain.data.normalising import of_pixels, stored
from mpitrain.errors import BadInput, first_line, library
from mpitrain.flat import Array
from mpitrain.models import torch_state
from mpitrain.models.torch_module import standalone
from mpitrain.trained.model import TrainedModel
from mpitrain.trained.onnx_graph import GraphOptions
from mpitrain.training.inputs import seen_shape

OPSET = 18  # the oldest version that torch.onnx writes, and the default


class WholeModule(torch.nn.Module):
    """Centre crop, (x − mean)·scale, the module, then posteriors or what else `kind` says."""

    mean: torch.Tensor
    scale: torch.Tensor
    priors: torch.Tensor

    def __init__(self, model: TrainedModel, options: GraphOptions) -> None:
        super().__init__()
        self.module = torch_state.cast(standalone(model.network, model.parameters), torch.float32)
        self.kind, self.output = options.kind, model.output
        self.images, self.crop = model.origin.kind == "images", 0
        priors = np.zeros(1) if options.log_priors is None else options.log_priors
        for name, array in zip(("mean", "scale", "priors"), (*_moments(model), priors), strict=True):
            self.register_buffer(name, torch.from_numpy(array.astype(np.float32)))
        if self.images:
            self.crop = model.config.data.crop
            self.top, self.left = ((length - self.crop) // 2 for length in model.origin.shape[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [n, classes]."""
        if self.crop:
            x = x[:, self.top : self.top + self.crop, self.left : self.left + self.crop]
        x = (x.to(torch.float32) - self.mean) * self.scale
        z = self.module(x.permute(0, 3, 1, 2) if self.images else x)
        logarithms = torch.log_softmax(z, 1) if self.output == "softmax" else torch.nn.functional.logsigmoid(z)
        return torch.exp(logarithms) if self.kind == "posteriors" else logarithms - self.priors


def _moments(model: TrainedModel) -> tuple[Array, Array]:
    origin, how = model.origin, model.config.data.normalise
    if origin.kind == "images":
        return of_pixels(how, origin.statistics, origin.shape[-1], np.float32)
    return stored(origin.statistics if how == "corpus" else {}, origin.shape[-1], np.float32)


def serialise(model: TrainedModel, options: GraphOptions, metadata: dict[str, str]) -> bytes:
    """The ONNX file. Raises BadInput naming the option, the missing library, or what torch.onnx cannot translate."""
    onnx = library("onnx.helper", "--format onnx needs onnx", "onnx")
    library("onnxscript", "--format onnx of a PyTorch module needs onnxscript", "torch")
    frames = model.origin.kind == "frames"
    if frames and options.image_type is not None:
        raise BadInput(f"--input {options.image_type}: only for images; features are float32")
    if options.opset < OPSET:
        raise BadInput(f"--opset {options.opset}: PyTorch modules from {OPSET} on")
    shape = seen_shape(model.config, model.origin) if frames else tuple(model.origin.shape)
    pixels = torch.float32 if frames or options.image_type == "float32" else torch.uint8
    example = torch.zeros((2, *shape), dtype=pixels)
    names = ["features" if frames else "images"], [options.kind.replace("-", "_")]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            program = torch.onnx.export(
                WholeModule(model, options).eval(),
                (example,),
                input_names=names[0],
                output_names=names[1],
                opset_version=options.opset,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        made = program.model_proto  # holds the paths of the sources, which may not be UTF-8
    except Exception as error:
        raise BadInput(f"--format onnx: torch.onnx: {type(error).__name__}: {first_line(error)}") from error
    onnx.set_model_props(made, metadata)
    return bytes(made.SerializeToString())
