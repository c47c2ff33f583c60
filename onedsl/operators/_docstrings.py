"""Docstring sections that the operator classes share.

In the docstring of a method, a line ``$name`` stands for one of these sections.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from string import Template
from typing import Any

from ._schema import OpSchema
from ._sums import Totals

_ARRAY = """\
A NumPy array or any other CPU array with ``__dlpack__``. The results have the same array type."""

_CALL = """\
out : $result or tuple of $count arrays, optional
    Where to write. ``out.$output`` may be $in_place itself; any other overlap is an error.$none
backend : {"auto", "onednn", "native"}
    Library that computes: onedsl (``"auto"`` and ``"native"``), whose kernels support all types on
    every x86-64 CPU, or oneDNN (``"onednn"``).

Returns
-------
$result
    ``out`` if given. $output has the memory layout of $src.

Raises
------
TypeError, ValueError
    If an argument is invalid. No output has been written.
UnsupportedError
    If the backend is ``"onednn"`` and oneDNN does not support the call on this CPU.
$warns
Notes
-----
$src is used in place if its memory is dense in any order of its axes. Other arrays (slices,
negative or zero strides, unaligned items$strides) are copied
first, and the logger ``onedsl`` reports it at level INFO."""

_COMPILED_CALL = """\
Parameters
----------
$tensors : array
    Of the spec's shape, dtype and strides.
$statistics : array
    Of ``stats_shape`` and ``stats_dtype``.
$optional
out : $result or tuple of $count arrays, optional
    As in a direct call.

Returns
-------
$result
    ``out`` if given.

Raises
------
TypeError, ValueError
    If an argument is invalid, or differs from what the operator was compiled for. No output has
    been written.
$warns
Notes
-----
Tensors are never copied. Statistics are copied if they are not contiguous."""

_COMPILED_OPTIONAL = """\
$names : array, optional
    Like $like. Must be given if and only if the operator was compiled with ``$first=True``."""

_SPEC = """\
spec : TensorSpec
    Shape, dtype and strides of $src and of every other array of its shape.
stats_dtype : str or dtype, default "f32"
    Dtype of mean and of every other array of its shape."""

_COMPILE = """\
backend : {"auto", "onednn", "native"}
    As in a direct call.
autotune : bool
    Whether to time both backends now and keep the faster one, if backend is ``"auto"``. This takes
    about ten calls of each and memory for their arrays. Accuracy is not compared: oneDNN's f32 sums
    are less accurate if a channel has many elements.

Returns
-------
Compiled$cls
    A callable with the arrays of a direct call, in the same order, and ``out``.

Raises
------
TypeError, ValueError
    If an argument is invalid.
UnsupportedError
    If the backend is ``"onednn"`` and oneDNN does not support the call on this CPU."""

_REDUCE = """\
Parameters
----------
$reduce_inputs : array
    As in a direct call, for a part of the batch of any size, which may be empty.$whole

Returns
-------
$totals
    Add those of all parts with ``+``, and pass the sum to `apply`.

Raises
------
TypeError, ValueError
    If an argument is invalid."""

_APPLY = """\
Parameters
----------
$totals_argument : $totals
    The sum of the results of `reduce` for all parts.
$inputs, out
    As in a direct call, for a part of the batch.$whole

Returns
-------
$result
    ``out`` if given. $output is that of the part. The other outputs are those of the whole batch,
    and are the same for every part.

Raises
------
TypeError, ValueError
    If an argument is invalid. No output has been written.
$warns"""

_WARNS = """
Warns
-----
GammaIgnoredWarning
    If $ignored is given with ``$required``.
"""


def fill(cls: type[Any], schema: OpSchema, totals: type[Totals]) -> None:
    """Replace the placeholders in the docstrings of a class's methods."""
    sections = {
        "array": _ARRAY,
        "call": _CALL,
        "compiled_call": _COMPILED_CALL,
        "spec": _SPEC,
        "compile": _COMPILE,
        "reduce": _REDUCE,
        "apply": _APPLY,
    }
    values = _values(cls.__name__, schema, totals)

    def section(found: re.Match[str]) -> str:
        return textwrap.indent(Template(sections[found[2]]).substitute(values), found[1])

    for method in vars(cls).values():
        if inspect.isfunction(method) and method.__doc__:
            text = inspect.cleandoc(method.__doc__)
            method.__doc__ = re.sub(r"^( *)\$(\w+)$", section, text, flags=re.MULTILINE).rstrip()


def _values(cls: str, schema: OpSchema, totals: type[Totals]) -> dict[str, str]:
    """Return the values of a class for the placeholders in the sections."""
    required = {p.name: p.kind for p in schema.inputs if not p.optional}
    tensors = [name for name, kind in required.items() if kind == "tensor"]
    statistics = [name for name, kind in required.items() if kind == "statistic"]
    output = schema.outputs[0]
    values = {
        "cls": cls,
        "result": schema.result.__name__,
        "count": {3: "three", 4: "four", 5: "five"}[len(schema.outputs)],
        "output": output.name,
        "in_place": output.in_place,
        "src": tensors[0],
        "tensors": ", ".join(tensors),
        "statistics": ", ".join(statistics),
        "inputs": ", ".join(port.name for port in schema.inputs),
        "reduce_inputs": ", ".join(port.name for port in schema.reduction.inputs),
        "totals": totals.__name__,
        "totals_argument": totals._argument,
        "ignored": schema.ignored,
        "required": schema.options[1],
        "none": "",
        "whole": "",
        "strides": "",
        "warns": "",
    }
    if schema.on_request:
        values["none"] = "\n    Outputs that are not requested must be None."
        values["inputs"] += ", outputs"
    if len(tensors) > 1:
        values["strides"] = f", a {tensors[1]} whose strides are not {tensors[0]}'s"
        values["whole"] = "\n    The statistics are those of the whole batch."
    if schema.ignored:
        values["warns"] = Template(_WARNS).substitute(values)
    optional = [[p for p in schema.inputs if p.optional and p.kind == "statistic"]]
    optional += [[p] for p in schema.inputs if p.optional and p.kind == "tensor"]
    values["optional"] = "\n".join(
        Template(_COMPILED_OPTIONAL).substitute(
            names=", ".join(port.name for port in ports),
            first=ports[0].name,
            like=tensors[0] if ports[0].kind == "tensor" else statistics[0],
        )
        for ports in optional
        if ports
    )
    return values
