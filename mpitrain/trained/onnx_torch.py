"""A trained PyTorch module as a complete ONNX graph from raw features or pixels to posteriors, with the inputs and
outputs of the graph that onnx_graph.py makes of our own layers. torch.onnx translates the module itself."""

import io
import logging
import warnings
from contextlib import redirect_stderr

import numpy as np
import torch

from mpitrain.errors import BadInput, blaming, library
from mpitrain.models.torch import state as torch_state
from mpitrain.models.torch.module import standalone
from mpitrain.trained.model import TrainedModel
from mpitrain.trained.onnx_graph import GraphOptions, given

OPSET = 18  # the oldest version that torch.onnx writes, and the default


class WholeModule(torch.nn.Module):
    """Centre crop, (x − mean)·scale, the module, then posteriors or another `kind` of output."""

    mean: torch.Tensor
    scale: torch.Tensor
    priors: torch.Tensor

    def __init__(self, model: TrainedModel, options: GraphOptions) -> None:
        super().__init__()
        self.module = torch_state.cast(standalone(model.network, model.parameters), torch.float32)
        self.kind, self.output = options.kind, model.network.output
        self.images, self.crop = model.origin.kind == "images", 0
        priors = np.zeros(1) if options.log_priors is None else options.log_priors
        for name, array in zip(("mean", "scale", "priors"), (*model.moments(), priors), strict=True):
            self.register_buffer(name, torch.from_numpy(array.astype(np.float32)))
        if self.images:
            self.crop = model.config.data.crop
            self.top, self.left = ((length - self.crop) // 2 for length in model.origin.shape[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [n, classes]."""
        if self.crop:
            x = x[:, self.top : self.top + self.crop, self.left : self.left + self.crop]
        x = (x.to(torch.float32) - self.mean) * self.scale
        z = self.module(x.permute(0, 3, 1, 2) if self.images else x).to(torch.float32)
        logarithms = torch.log_softmax(z, 1) if self.output == "softmax" else torch.nn.functional.logsigmoid(z)
        return torch.exp(logarithms) if self.kind == "posteriors" else logarithms - self.priors


def serialise(model: TrainedModel, options: GraphOptions, metadata: dict[str, str]) -> bytes:
    """The ONNX file. Raises BadInput naming the option, the missing library, or what torch.onnx cannot translate."""
    onnx = library("onnx.helper", "--format onnx needs onnx", "onnx")
    library("onnxscript", "--format onnx of a PyTorch module needs onnxscript", "torch")
    source, shape, dtype = given(model, options)
    if options.opset < OPSET:
        raise BadInput(f"--opset {options.opset}: PyTorch modules from {OPSET} on")
    example = torch.zeros((2, *shape), dtype=getattr(torch, dtype))
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()), torch.no_grad():
            program = torch.onnx.export(
                WholeModule(model, options).eval(),
                (example,),
                input_names=[source],
                output_names=[options.kind.replace("-", "_")],
                opset_version=options.opset,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        made = program.model_proto  # holds the paths of the sources, which may not be UTF-8
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the outer exceptions only say how far the export came
            cause = cause.__cause__
        with blaming("--format onnx", f"torch.onnx of PyTorch {torch.__version__}"):
            raise cause from None
    if not made.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise BadInput("--format onnx: the module fixes the number of samples, as by len(x): use x.shape[0]")
    onnx.set_model_props(made, metadata)
    return bytes(made.SerializeToString())
