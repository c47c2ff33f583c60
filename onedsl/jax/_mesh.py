"""Arrays that are split over the devices of a mesh.

Under `jax.jit` the compiler splits a program where its arrays are split. It cannot look into a call
out of the program, so it is told here how one goes with split arrays: where only channels are
split, each device calls onedsl for its own; where a channel's elements are, the devices add up
their sums. Inside of `jax.shard_map`, where a program sees one device's part, so does a call.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .. import _core
from ..operators.batch_norm_training_backward import BatchNormGradients
from . import _call, _formulas
from ._arguments import Attributes
from ._formulas import Devices

# Takes the op's attributes, and the arrays that devices have.
_Whole = Callable[..., Any]
# The same with `devices`, the axes of the mesh over which the elements of a channel are split.
_Part = Callable[..., Any]


def backward(
    attributes: Attributes,
    src: jax.Array,
    diff_dst: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
) -> BatchNormGradients:
    """Compute the gradients."""
    inputs = src, diff_dst, mean, variance, gamma
    gradients: BatchNormGradients = _split(attributes, _call.backward, _backward_of_a_part, inputs)
    return gradients


def forward(
    attributes: Attributes, src: jax.Array, gamma: jax.Array | None, beta: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalize by the batch's own statistics: dst, mean, variance, the last two in f32."""
    results: tuple[jax.Array, jax.Array, jax.Array] = _split(
        attributes, _call.forward, _formulas.forward, (src, gamma, beta)
    )
    return results


def together(attributes: Attributes, *arrays: Any) -> tuple[Any, ...]:
    """Let arrays of the op go into it together, in the eyes of JAX's types, src first.

    The gradient of what was the same on some devices, and is split here or may differ, is then
    gathered from them, or summed over them.
    """
    sharding = jax.typeof(arrays[0]).sharding
    if _is_explicit(sharding):
        split = _shardings(attributes, sharding, arrays[0].shape)
        arrays = tuple(a if a is None else jax.sharding.reshard(a, split(a)) for a in arrays)
    varying = [frozenset() if a is None else _varying(a) for a in arrays]
    all_axes = frozenset[str]().union(*varying)
    return tuple(
        array if array is None else _vary(array, all_axes - own)
        for array, own in zip(arrays, varying, strict=True)
    )


def _is_explicit(sharding: Any) -> bool:
    """Whether arrays' types say how they are split; an experiment until JAX had `reshard`."""
    return AxisType.Explicit in sharding.mesh.axis_types and hasattr(jax.sharding, "reshard")


def _varying(array: Any) -> frozenset[str]:
    of_type: Any = jax.typeof(array)
    axes: frozenset[str] = of_type.vma if hasattr(of_type, "vma") else of_type.mat.varying
    return axes


def _vary(array: jax.Array, axes: frozenset[str]) -> Any:
    if not axes:
        return array
    if hasattr(jax.lax, "pcast"):  # pvary is its older name
        return jax.lax.pcast(array, tuple(axes), to="varying")
    return jax.lax.pvary(array, tuple(axes))


def _backward_of_a_part(
    attributes: Attributes,
    src: jax.Array,
    diff_dst: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
    *,
    devices: Devices,
) -> BatchNormGradients:
    """Compute the gradients, of elements that other devices have the rest of.

    The sums are onedsl's, and the rest is `jax.numpy`'s. The diff_src that is thrown away here is
    one of the six times that memory of a tensor's size is gone through.
    """
    frozen = dataclasses.replace(attributes, statistics=_core.Statistics.frozen)
    mu, var, scale = jax.tree.map(_formulas.wide, (mean, variance, gamma))  # no sum in 16 bits
    part = _call.backward(frozen, src, diff_dst, mu, var, scale)
    diff_gamma, diff_beta = jax.lax.psum((part.diff_gamma, part.diff_beta), devices)
    diff_src = part.diff_src
    if attributes != frozen:
        diff_src = _formulas.diff_src(
            attributes, src, diff_dst, mu, var, scale, diff_gamma, diff_beta, devices
        )
    return BatchNormGradients(diff_src, diff_gamma.astype(mean.dtype), diff_beta.astype(mean.dtype))


def _split(attributes: Attributes, whole: _Whole, part: _Part, inputs: tuple[Any, ...]) -> Any:
    """Call `whole`, in a way that the compiler can split."""
    whole, part = functools.partial(whole, attributes), functools.partial(part, attributes)
    if jax.sharding.get_abstract_mesh().manual_axes:
        varying = _varying(inputs[0])
        return jax.tree.map(lambda array: _vary(array, varying - _varying(array)), whole(*inputs))
    results = jax.eval_shape(whole, *inputs)
    call = _partitioned(attributes, whole, part, inputs, results)
    sharding = jax.typeof(inputs[0]).sharding
    if not _is_explicit(sharding):
        return call(*inputs)
    # The compiler splits over the axes of a mesh that are Auto alone.
    shardings = jax.tree.map(_shardings(attributes, sharding, inputs[0].shape), results)
    return jax.sharding.auto_axes(call, out_sharding=shardings)(*inputs)


def _partitioned(
    attributes: Attributes, whole: _Whole, part: _Part, inputs: tuple[Any, ...], results: Any
) -> Any:
    """Give the call, with rules for the compiler and for vmap."""

    def infer(_mesh: Any, arguments: Any, results: Any) -> Any:
        src = arguments[0]
        return jax.tree.map(_shardings(attributes, src.sharding, src.shape), results)

    def partition(_mesh: Any, arguments: Any, results: Any) -> Any:
        src = arguments[0]
        sharding = _shardings(attributes, src.sharding, src.shape)
        devices = _summed_over(attributes, sharding(src).spec)
        local = functools.partial(part, devices=devices) if devices else whole
        shardings = (jax.tree.map(sharding, arrays) for arrays in (results, arguments))
        return sharding(src).mesh, local, *shardings

    call = custom_partitioning(whole)
    call.def_partition(
        partition=partition,
        infer_sharding_from_operands=infer,  # for JAX before 0.7
        sharding_rule=_sharding_rule(attributes, inputs, results),
    )
    # custom_partitioning knows no vmap: a batch of calls is one call, that is not split.
    batchable: Any = custom_vmap(call)

    def batch(size: int, batched: Any, *arrays: Any) -> Any:
        in_axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched)
        together = jax.vmap(whole, in_axes, axis_size=size)(*arrays)
        return together, jax.tree.map(lambda _: True, together)

    batchable.def_vmap(batch)
    return batchable


def _sharding_rule(attributes: Attributes, inputs: Any, results: Any) -> str:
    """Say which axes of the arrays are the same, as in ``"n x c, c -> n x c, c"``."""
    rank = inputs[0].ndim
    names = [f"x{axis}" for axis in range(rank)]
    channels = names[attributes.data_format.channel_axis]
    sides = (
        ", ".join(" ".join(names) if len(a.shape) == rank else channels for a in arrays)
        for arrays in map(jax.tree.leaves, (inputs, results))
    )
    return " -> ".join(sides)


def _shardings(
    attributes: Attributes, of_src: Any, shape: tuple[int, ...]
) -> Callable[[Any], NamedSharding]:
    """Give the function that gives the sharding of any array of the op: it follows from src's."""
    if not isinstance(of_src, NamedSharding):  # there are no names to sum over, so nothing is split
        of_src = NamedSharding(Mesh(list(of_src.device_set), ("all",)), PartitionSpec())
    # Uneven parts would be filled up with elements that are nobody's.
    spec = [
        axes if size % math.prod(of_src.mesh.shape[name] for name in _names(axes)) == 0 else None
        for size, axes in itertools.zip_longest(shape, of_src.spec)
    ]
    channels = spec[attributes.data_format.channel_axis]

    def sharding(array: Any) -> NamedSharding:
        axes = spec if len(array.shape) == len(shape) else [channels]
        return NamedSharding(of_src.mesh, PartitionSpec(*axes))

    return sharding


def _summed_over(attributes: Attributes, spec: Any) -> Devices:
    """Give the axes of the mesh over which the elements of a channel are split."""
    summed = attributes.data_format.summed_axes(len(spec))
    return tuple(name for axis in summed for name in _names(spec[axis]))


def _names(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Take what a PartitionSpec has for an axis of an array."""
    return (axes,) if isinstance(axes, str) else axes or ()
