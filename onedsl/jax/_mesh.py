"""Partitioning of the calls over the devices of a mesh.

Under `jax.jit` the compiler partitions a program by the shardings of its arrays. It cannot analyze
a custom call, so this module defines the partitioning. If only the channels are sharded, each
device calls onedsl for its own channels. If the elements of a channel are sharded, each device
computes sums over its own elements, and the sums are added over the devices. Inside
`jax.shard_map`, a call computes on the arrays of one device.
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
from ._formulas import MeshAxes

# A function whose arrays contain all elements of each channel. Its arguments are the attributes and
# the arrays.
_LocalCall = Callable[..., Any]
# A function whose arrays contain some elements of each channel. It has the same arguments, and the
# keyword argument `mesh_axes`: its sums include all devices along these axes.
_SummingCall = Callable[..., Any]


def backward(
    attributes: Attributes,
    src: jax.Array,
    diff_dst: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
) -> BatchNormGradients:
    """Compute diff_src, diff_gamma and diff_beta of arrays that may be sharded."""
    inputs = src, diff_dst, mean, variance, gamma
    gradients: BatchNormGradients = _partition(
        attributes, _call.backward, _summing_backward, inputs
    )
    return gradients


def forward(
    attributes: Attributes, src: jax.Array, gamma: jax.Array | None, beta: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalize by the batch statistics, for arrays that may be sharded.

    Return dst, and mean and variance in f32.
    """
    results: tuple[jax.Array, jax.Array, jax.Array] = _partition(
        attributes, _call.forward, _formulas.forward, (src, gamma, beta)
    )
    return results


def match_shardings(attributes: Attributes, *arrays: Any) -> tuple[Any, ...]:
    """Convert the shardings of the arrays so that JAX accepts the arrays in one operation.

    The first array is src. Explicit shardings are matched to the sharding of src. Inside
    `jax.shard_map`, all arrays become varying over the same mesh axes. JAX transposes these
    conversions, so the gradient of an array that was replicated is summed over the devices.
    """
    sharding = jax.typeof(arrays[0]).sharding
    if _is_explicit(sharding):
        sharding_of = _shardings(attributes, sharding, arrays[0].shape)
        arrays = tuple(a if a is None else jax.sharding.reshard(a, sharding_of(a)) for a in arrays)
    varying = [frozenset() if a is None else _varying_axes(a) for a in arrays]
    all_axes = frozenset[str]().union(*varying)
    return tuple(
        array if array is None else _make_varying(array, all_axes - axes)
        for array, axes in zip(arrays, varying, strict=True)
    )


def _is_explicit(sharding: Any) -> bool:
    """Return whether the mesh of a sharding has Explicit axes.

    The result is False for versions of JAX without `jax.sharding.reshard`, in which these axes were
    experimental.
    """
    return AxisType.Explicit in sharding.mesh.axis_types and hasattr(jax.sharding, "reshard")


def _varying_axes(array: Any) -> frozenset[str]:
    """Return the axes of `jax.shard_map` along which devices may hold different values."""
    array_type: Any = jax.typeof(array)
    has_vma = hasattr(array_type, "vma")  # newer versions of JAX name it mat.varying
    axes: frozenset[str] = array_type.vma if has_vma else array_type.mat.varying
    return axes


def _make_varying(array: jax.Array, axes: frozenset[str]) -> Any:
    """Return the array, marked for `jax.shard_map` as varying along more mesh axes."""
    if not axes:
        return array
    if hasattr(jax.lax, "pcast"):  # older versions of JAX name it pvary
        return jax.lax.pcast(array, tuple(axes), to="varying")
    return jax.lax.pvary(array, tuple(axes))


def _summing_backward(
    attributes: Attributes,
    src: jax.Array,
    diff_dst: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    gamma: jax.Array | None,
    *,
    mesh_axes: MeshAxes,
) -> BatchNormGradients:
    """Compute the gradients if this device has only some elements of each channel.

    onedsl computes diff_gamma and diff_beta for this device's elements. They are added over the
    devices, and `jax.numpy` computes diff_src from the totals. For batch statistics, the diff_src
    that onedsl computed is discarded; it costs one of six passes over memory of src's size.
    """
    frozen = dataclasses.replace(attributes, statistics=_core.Statistics.frozen)
    # Convert to f32, so that the sums over devices are f32.
    mu, var, scale = jax.tree.map(_formulas.to_f32, (mean, variance, gamma))
    local = _call.backward(frozen, src, diff_dst, mu, var, scale)
    diff_gamma, diff_beta = jax.lax.psum((local.diff_gamma, local.diff_beta), mesh_axes)
    diff_src = local.diff_src
    if attributes != frozen:
        diff_src = _formulas.diff_src(
            attributes, src, diff_dst, mu, var, scale, diff_gamma, diff_beta, mesh_axes
        )
    return BatchNormGradients(diff_src, diff_gamma.astype(mean.dtype), diff_beta.astype(mean.dtype))


def _partition(
    attributes: Attributes,
    local_call: _LocalCall,
    summing_call: _SummingCall,
    inputs: tuple[Any, ...],
) -> Any:
    """Compute a result such that the compiler can partition the computation over devices.

    Each device runs `local_call` or, if the elements of a channel are sharded, `summing_call`.
    """
    local_call = functools.partial(local_call, attributes)
    summing_call = functools.partial(summing_call, attributes)
    if jax.sharding.get_abstract_mesh().manual_axes:  # inside jax.shard_map
        varying = _varying_axes(inputs[0])
        return jax.tree.map(
            lambda array: _make_varying(array, varying - _varying_axes(array)), local_call(*inputs)
        )
    results = jax.eval_shape(local_call, *inputs)
    call = _partitioned(attributes, local_call, summing_call, inputs, results)
    sharding = jax.typeof(inputs[0]).sharding
    if not _is_explicit(sharding):
        return call(*inputs)
    # The compiler partitions only over Auto axes of a mesh.
    shardings = jax.tree.map(_shardings(attributes, sharding, inputs[0].shape), results)
    return jax.sharding.auto_axes(call, out_sharding=shardings)(*inputs)


def _partitioned(
    attributes: Attributes,
    local_call: _LocalCall,
    summing_call: _SummingCall,
    inputs: tuple[Any, ...],
    results: Any,
) -> Any:
    """Return `local_call` with rules for the partitioner and for `jax.vmap`."""

    def infer(_mesh: Any, arguments: Any, results: Any) -> Any:
        src = arguments[0]
        return jax.tree.map(_shardings(attributes, src.sharding, src.shape), results)

    def partition(_mesh: Any, arguments: Any, results: Any) -> Any:
        src = arguments[0]
        sharding_of = _shardings(attributes, src.sharding, src.shape)
        mesh_axes = _summed_mesh_axes(attributes, sharding_of(src).spec)
        per_device = (
            functools.partial(summing_call, mesh_axes=mesh_axes) if mesh_axes else local_call
        )
        shardings = (jax.tree.map(sharding_of, arrays) for arrays in (results, arguments))
        return sharding_of(src).mesh, per_device, *shardings

    call = custom_partitioning(local_call)
    call.def_partition(
        partition=partition,
        infer_sharding_from_operands=infer,  # for JAX before 0.7
        sharding_rule=_sharding_rule(attributes, inputs, results),
    )
    # custom_partitioning does not support vmap, so a batch becomes one call without partitioning.
    batchable: Any = custom_vmap(call)

    def batch(size: int, batched: Any, *arrays: Any) -> Any:
        in_axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched)
        outputs = jax.vmap(local_call, in_axes, axis_size=size)(*arrays)
        return outputs, jax.tree.map(lambda _: True, outputs)

    batchable.def_vmap(batch)
    return batchable


def _sharding_rule(attributes: Attributes, inputs: Any, results: Any) -> str:
    """Return the rule that names equal axes, such as ``"x0 x1 x2, x2 -> x0 x1 x2, x2"``."""
    rank = inputs[0].ndim
    names = [f"x{axis}" for axis in range(rank)]
    channels = names[attributes.data_format.channel_axis]
    sides = (
        ", ".join(" ".join(names) if len(a.shape) == rank else channels for a in arrays)
        for arrays in map(jax.tree.leaves, (inputs, results))
    )
    return " -> ".join(sides)


def _shardings(
    attributes: Attributes, src_sharding: Any, shape: tuple[int, ...]
) -> Callable[[Any], NamedSharding]:
    """Return a function that returns the sharding of any input or output, given src's sharding."""
    if not isinstance(src_sharding, NamedSharding):  # it has no axis names: replicate all arrays
        src_sharding = NamedSharding(Mesh(list(src_sharding.device_set), ("all",)), PartitionSpec())
    # Gather axes that are not evenly divisible: XLA would pad them with arbitrary elements.
    spec = [
        axes
        if size % math.prod(src_sharding.mesh.shape[name] for name in _mesh_axes(axes)) == 0
        else None
        for size, axes in itertools.zip_longest(shape, src_sharding.spec)
    ]
    channels = spec[attributes.data_format.channel_axis]

    def sharding_of(array: Any) -> NamedSharding:
        axes = spec if len(array.shape) == len(shape) else [channels]
        return NamedSharding(src_sharding.mesh, PartitionSpec(*axes))

    return sharding_of


def _summed_mesh_axes(attributes: Attributes, spec: Any) -> MeshAxes:
    """Return the mesh axes over which the elements of a channel are sharded."""
    summed = attributes.data_format.summed_axes(len(spec))
    return tuple(name for axis in summed for name in _mesh_axes(spec[axis]))


def _mesh_axes(entry: str | tuple[str, ...] | None) -> MeshAxes:
    """Return an entry of a PartitionSpec as a tuple of mesh axes."""
    return (entry,) if isinstance(entry, str) else entry or ()
