"""Saves a program in one process ("save"), and runs it in another ("run"), on a file."""

import functools
import sys
from pathlib import Path

import jax
import numpy as np
from jax import export

import onedsl.jax
from onedsl import testing

EPSILON = 1e-5
TARGETS = ("onedsl_batch_norm_training_backward", "onedsl_batch_norm_forward_training")
OPTIONS = {"epsilon": EPSILON, "data_format": "NCX"}
what, name, *symbols = sys.argv[1:]
path = Path(name)
problem = testing.random_problem((6, 8, 4, 3), "bf16", data_format="NCX")
src, diff_dst, mean, variance, gamma = problem

backward = functools.partial(onedsl.jax.batch_norm_backward, **OPTIONS)


def both(src, diff_dst, mean, variance, gamma):
    """Differentiate the layer, of which the forward pass is a call too, and call the operator."""

    def loss(src, gamma):
        dst, mean, variance = onedsl.jax.batch_norm(src, gamma, **OPTIONS)
        return (dst.astype("f4") * diff_dst.astype("f4")).sum() + (mean * variance).sum()

    return jax.grad(loss, (0, 1))(src, gamma), backward(src, diff_dst, mean, variance, gamma)


if what == "save":
    shape = export.symbolic_shape(symbols[0]) if symbols else src.shape
    tensor, statistic = (
        jax.ShapeDtypeStruct(s, t) for s, t in ((shape, src.dtype), (shape[1:2], "f4"))
    )
    allowed = [export.DisabledSafetyCheck.custom_call(target) for target in TARGETS]
    program = export.export(jax.jit(both), disabled_checks=allowed)
    path.write_bytes(program(tensor, tensor, *[statistic] * 3).serialize())
else:
    program = export.deserialize(bytearray(path.read_bytes()))
    for got, wanted in zip(
        jax.tree.leaves(program.call(*problem)),
        jax.tree.leaves(jax.jit(both)(*problem)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)
    gradients = program.call(*problem)[1]
    assert isinstance(gradients, onedsl.BatchNormGradients)
    testing.assert_gradients_close(gradients, testing.batch_norm_backward(*problem, **OPTIONS))
