"""Exports programs to a folder ("save"), or runs the exported programs of a folder ("run")."""

import functools
import sys
from pathlib import Path

import jax
import numpy as np
from jax import export

import onedsl.jax
from onedsl import testing

EPSILON = 1e-5
CALLS = ("forward_training", "training_backward", "act_forward_training", "act_training_backward")
TARGETS = [f"onedsl_batch_norm_{call}" for call in CALLS]
OPTIONS = {"epsilon": EPSILON, "data_format": "NCX"}
SHAPES = ("6, 8, 4, 3", "b, 8, 4, 3", "b, 8, h, w", "b, c, h, w")
action, folder = sys.argv[1:]
problem = testing.random_problem((6, 8, 4, 3), "bf16", data_format="NCX")
src, diff_dst, mean, variance, gamma = problem

backward = functools.partial(onedsl.jax.batch_norm_backward, **OPTIONS)


def gradients(src, diff_dst, mean, variance, gamma):
    """Return the gradients of the training layer, and those of the operator."""

    def loss(src, gamma):
        dst, mean, variance = onedsl.jax.batch_norm(src, gamma, **OPTIONS)
        return (dst.astype("f4") * diff_dst.astype("f4")).sum() + (mean * variance).sum()

    def loss_after_activation(src, gamma, residual):
        fused = functools.partial(onedsl.jax.batch_norm, activation="leaky_relu", **OPTIONS)
        return fused(src, gamma, negative_slope=0.25, residual=residual)[0].astype("f4").sum()

    after = jax.grad(loss_after_activation, (0, 1, 2))(src, gamma, diff_dst)
    backward_results = backward(src, diff_dst, mean, variance, gamma)
    return jax.grad(loss, (0, 1))(src, gamma), backward_results, after


for number, symbols in enumerate(SHAPES):
    path = Path(folder, str(number))
    if action == "save":
        shape = export.symbolic_shape(symbols)
        tensor = jax.ShapeDtypeStruct(shape, src.dtype)
        statistic = jax.ShapeDtypeStruct(shape[1:2], "f4")
        allowed = [export.DisabledSafetyCheck.custom_call(target) for target in TARGETS]
        program = export.export(jax.jit(gradients), disabled_checks=allowed)
        path.write_bytes(program(tensor, tensor, *[statistic] * 3).serialize())
    else:
        program = export.deserialize(bytearray(path.read_bytes()))
        results = program.call(*problem)
        expected = jax.jit(gradients)(*problem)
        jax.tree.map(np.testing.assert_array_equal, results, expected)
        assert isinstance(results[1], onedsl.BatchNormGradients)
        reference = testing.batch_norm_backward(*problem, **OPTIONS)
        testing.assert_close(results[1], reference)
