"""Partitioning of the calls over the devices of a mesh.

Under `jax.jit` the compiler partitions a program by the shardings of its arrays. It cannot analyze
a custom call, so this module defines the partitioning. If only the channels are sharded, each
device calls onedsl for its own channels. If the elements of a channel are sharded, each device
computes sums over its own elements, and the sums are added over the devices. Inside
`jax.shard_map`, a call computes on the arrays of one device.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ._arguments import Attributes

MeshAxes = tuple[str, ...]
Call = Callable[..., Any]


def match_shardings(attributes: Attributes, *arrays: Any) -> tuple[Any, ...]:
    """Convert the shardings of the arrays so that JAX accepts the arrays in one operation.

    The first array is src. Explicit shardings are matched to the sharding of src. Inside
    `jax.shard_map`, all arrays become varying over the same mesh axes. JAX transposes these
    conversions, so the gradient of an array that was replicated is summed over the devices.
    """
    sharding = jax.typeof(arrays[0]).sharding
    if _is_explicit(sharding):
        sharding_of = _shardings(attributes, sharding, arrays[0].shape)
        arrays = jax.tree.map(lambda array: jax.sharding.reshard(array, sharding_of(array)), arrays)
    varying = frozenset[str]().union(*map(_varying_axes, jax.tree.leaves(arrays)))
    matched: tuple[Any, ...] = jax.tree.map(lambda array: _make_varying(array, varying), arrays)
    return matched


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
    """Return the array, marked for `jax.shard_map` as varying along these mesh axes as well."""
    new = tuple(sorted(axes - _varying_axes(array)))  # in each process the same program
    if not new:
        return array
    if hasattr(jax.lax, "pcast"):  # older versions of JAX name it pvary
        return jax.lax.pcast(array, new, to="varying")
    return jax.lax.pvary(array, new)


def partitioned(local_call: Call, summing_call: Call) -> Call:
    """Return a function of the attributes and arrays that the compiler can partition over devices.

    Each device runs `local_call` or, if the elements of a channel are sharded, `summing_call`,
    whose sums include all devices along the axes in its keyword argument `mesh_axes`.
    """

    def call(attributes: Attributes, *inputs: Any) -> Any:
        local = functools.partial(local_call, attributes)
        if jax.sharding.get_abstract_mesh().manual_axes:  # inside jax.shard_map
            varying = _varying_axes(inputs[0])
            return jax.tree.map(lambda array: _make_varying(array, varying), local(*inputs))
        results = jax.eval_shape(local, *inputs)
        summing = functools.partial(summing_call, attributes)
        whole = _with_rules(attributes, local, summing, inputs, results)
        sharding = jax.typeof(inputs[0]).sharding
        if not _is_explicit(sharding):
            return whole(*inputs)
        # The compiler partitions only over Auto axes of a mesh.
        shardings = jax.tree.map(_shardings(attributes, sharding, inputs[0].shape), results)
        return jax.sharding.auto_axes(whole, out_sharding=shardings)(*inputs)

    return call


def _with_rules(
    attributes: Attributes, local_call: Call, summing_call: Call, inputs: Any, results: Any
) -> Any:
    """Return `local_call` with rules for the partitioner and for `jax.vmap`."""

    def infer(_mesh: Any, arguments: Any, results: Any) -> Any:
        src = arguments[0]
        return jax.tree.map(_shardings(attributes, src.sharding, src.shape), results)

    def partition(_mesh: Any, arguments: Any, results: Any) -> Any:
        src = arguments[0]
        sharding_of = _shardings(attributes, src.sharding, src.shape)
        spec = sharding_of(src).spec
        mesh_axes = tuple(
            name
            for axis in attributes.data_format.summed_axes(len(spec))
            for name in _mesh_axes(spec[axis])
        )
        per_device = (
            functools.partial(summing_call, mesh_axes=mesh_axes) if mesh_axes else local_call
        )
        shardings = (jax.tree.map(sharding_of, arrays) for arrays in (results, arguments))
        return sharding_of(src).mesh, per_device, *shardings

    # custom_partitioning rejects constants, which jax.ensure_compile_time_eval makes of zeros.
    call = custom_partitioning(jax.jit(local_call))
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
        devices = sorted(src_sharding.device_set, key=lambda device: device.id)
        src_sharding = NamedSharding(Mesh(devices, ("all",)), PartitionSpec())
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


def _mesh_axes(entry: str | tuple[str, ...] | None) -> MeshAxes:
    """Return an entry of a PartitionSpec as a tuple of mesh axes."""
    return (entry,) if isinstance(entry, str) else entry or ()
