"""The tensors that a module holds: their types, their names in its state_dict, and their values."""

import torch

from mpitrain.flat import Array


def cast(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """The module, its floating tensors of this type, float32 or float64, and its complex ones of the same precision.

    `module.to` would make floating tensors of the complex ones, without their imaginary parts.
    """
    (module.float if dtype is torch.float32 else module.double)()
    for buffer in module.buffers():
        if buffer.is_complex():
            buffer.data = buffer.data.to(dtype.to_complex())
    return module


def numbers(tensor: torch.Tensor) -> Array:
    """The tensor, which lies on the CPU, as an array in its memory, or in new memory if it is conjugate or negative
    only by a mark. Raises TypeError or RuntimeError if NumPy has no such arrays."""
    return tensor.detach().resolve_conj().resolve_neg().numpy()


def held(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by their names in the module's state_dict, of which a shared one has several. What layers
    add to it by `get_extra_state` is left out: it is as the module was built."""
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    return {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if id(tensor) in own}


def extra(module: torch.nn.Module) -> dict[str, object]:
    """What layers add by `get_extra_state`, by its names in the module's state_dict."""
    state: dict[str, object] = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if name.rpartition(".")[2] == "_extra_state"}


def fill(tensor: torch.Tensor, array: Array) -> None:
    """Give a tensor the values of an array in host memory. It gets memory of its own: a buffer that was expanded has
    one element for many."""
    tensor.data = torch.empty_like(tensor.data).copy_(torch.from_numpy(array).reshape(tensor.shape))


def unfold(module: torch.nn.Module) -> None:
    """Give expanded tensors, with one element for many, memory of their own: nothing can be written into such ones."""
    for tensor in (*module.parameters(), *module.buffers()):
        if any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
            fill(tensor, numbers(tensor))


def of_one_kind(tensor: torch.Tensor, array: Array) -> bool:
    """Whether the array's values can be the tensor's: as many, and both complex, floating, or neither."""
    other = torch.from_numpy(array)
    kinds = [(each.is_complex(), each.is_floating_point()) for each in (tensor, other)]
    return tensor.numel() == array.size and kinds[0] == kinds[1]


def share(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether parameters or buffers of one module are the other's."""
    tensors = [{id(tensor) for tensor in (*module.parameters(), *module.buffers())} for module in (one, other)]
    return not tensors[0].isdisjoint(tensors[1])
