"""Convolution in groups: each filter sees the channels of its own group (Krizhevsky et al. 2012, §3.2)."""

from collections.abc import Sequence

import numpy as np

from mpitrain.flat import Array
from mpitrain.models.workspace import Product, Workspace


class GroupProduct:
    """models.workspace.Product of equal parts of the channels and of the filters, with weights [kh, kw, channels of
    a group, filters]: `products` has one for each group, which works on copies of its part."""

    def __init__(self, name: str, products: Sequence[Product], workspace: Workspace) -> None:
        self._name, self._products, self._workspace = name, products, workspace

    def examples(self, count: int, channels: int, itemsize: int) -> int:
        return self._products[0].examples(count, channels, itemsize)  # the patches of all groups fit in cache together

    def forward(self, x: Array, weights: Array, z: Array) -> None:
        for group, product in enumerate(self._products):
            part = self._room("z", group, z)
            product.forward(self._copy("x", group, x), self._copy("weights", group, weights), part)
            np.copyto(self._part(group, z), part)

    def weight_gradient(self, x: Array, dz: Array, out: Array, add: bool) -> None:
        for group, product in enumerate(self._products):
            part = self._copy("gradient", group, out) if add else self._room("gradient", group, out)
            product.weight_gradient(self._copy("x", group, x), self._copy("z", group, dz), part, add)
            np.copyto(self._part(group, out), part)

    def input_gradient(self, dz: Array, weights: Array, dx: Array) -> None:
        for group, product in enumerate(self._products):
            part = self._room("x", group, dx)
            product.input_gradient(self._copy("z", group, dz), self._copy("weights", group, weights), part)
            np.copyto(self._part(group, dx), part)

    def _part(self, group: int, whole: Array) -> Array:
        """The group's part of the last axis, channels or filters."""
        count = whole.shape[-1] // len(self._products)
        return whole[..., group * count : (group + 1) * count]

    def _copy(self, what: str, group: int, whole: Array) -> Array:
        room = self._room(what, group, whole)
        np.copyto(room, self._part(group, whole))
        return room

    def _room(self, what: str, group: int, whole: Array) -> Array:
        return self._workspace.array(f"{self._name}.group.{what}", self._part(group, whole).shape, whole.dtype)
