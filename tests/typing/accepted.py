"""A program with every public name of onedsl that type checkers accept and that runs."""

from __future__ import annotations

import warnings
from typing import Literal, assert_type

import ml_dtypes
import numpy as np
import numpy.typing as npt

import onedsl
from onedsl import testing

Float32 = npt.NDArray[np.float32]


def direct(src: Float32, diff_dst: Float32, mean: Float32, variance: Float32) -> None:
    gamma = np.ones_like(mean)
    op = onedsl.BatchNormTrainingBackward(epsilon=1e-5, data_format="NXC")
    grads = op(src, diff_dst, mean, variance, gamma)
    assert_type(grads, onedsl.BatchNormGradients[Float32])
    assert_type(grads.diff_src, Float32)
    diff_src, diff_gamma, diff_beta = grads
    alone = op(src, diff_dst, mean, variance, outputs="diff_src", backend="onednn")
    assert_type(alone, onedsl.BatchNormGradients[Float32])
    op(src, diff_dst, mean, variance, out=grads, backend="auto")
    op(src=src, diff_dst=diff_dst, mean=mean, variance=variance, gamma=gamma, outputs="all")
    op(src, diff_dst, mean, variance, out=(diff_src, diff_gamma, diff_beta))
    op(src, diff_dst, mean, variance, outputs="diff_src", out=(diff_src, None, None))
    op(src, diff_dst, mean, variance, outputs="diff_src", out=onedsl.BatchNormGradients(diff_src))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", onedsl.GammaIgnoredWarning)
        op(src, diff_dst, mean, variance, gamma, outputs="diff_src")
    assert_type(op.epsilon, float)
    assert_type(op.data_format, onedsl.DataFormat)

    backprop = onedsl.BatchNormTrainingBackprop(1e-5, onedsl.DataFormat.NXC)
    deltas = backprop(input_forward=src, output_delta=diff_dst, mean=mean, variance=variance)
    assert_type(deltas, onedsl.BatchNormDeltas[Float32])
    assert_type(deltas.input_delta, Float32)
    print(deltas.input_delta, deltas.gamma_delta, deltas.beta_delta)

    ones = np.ones((1,) * (src.ndim - 1) + mean.shape, np.float32)
    grad = onedsl.BatchNormalizationGrad(epsilon=1e-5)
    frozen = grad(src, diff_dst, ones, ones, scale=ones, outputs="output_gradient")
    assert_type(frozen, onedsl.BatchNormalizationGradients[Float32])
    assert_type(frozen.output_gradient, Float32)
    print(frozen.output_gradient, frozen.output_scale_gradient, frozen.output_bias_gradient)


def forward(src: Float32, mean: Float32, variance: Float32) -> None:
    op = onedsl.BatchNormForwardTraining(1e-5, momentum=0.1, data_format="NXC")
    result = op(src, mean, variance, gamma=mean, beta=mean)
    assert_type(result, onedsl.BatchNormForward[Float32])
    assert_type(result.dst, Float32)
    dst, running_mean, running_variance, batch_mean, batch_variance = result
    op(src, mean, variance, out=(dst, running_mean, running_variance, batch_mean, batch_variance))
    assert_type(op(src=src, mean=mean, variance=variance, out=result).dst, Float32)
    assert_type(op.graph(onedsl.TensorSpec.of(src), gamma=False), onedsl.graph.Graph)


def parts(src: Float32, diff_dst: Float32, mean: Float32, variance: Float32) -> None:
    forward = onedsl.BatchNormForwardTraining(1e-5)
    moments = forward.reduce(src[:2]) + forward.reduce(src=src[2:])
    assert_type(moments, onedsl.BatchNormMoments)
    totals: onedsl.BatchNormTotals = moments
    print(totals.count, totals.channels)
    assert_type(sum([moments], start=moments), onedsl.BatchNormMoments)
    assert_type(moments.to_vector(), npt.NDArray[np.float64])
    assert_type(moments.mean, npt.NDArray[np.float64])
    assert_type(forward.apply(moments, src[:2], mean, variance).dst, Float32)

    op = onedsl.BatchNormTrainingBackward(1e-5)
    sums = op.reduce(src, diff_dst, mean, variance)
    assert_type(sums, onedsl.BatchNormSums)
    assert_type(sums.count, int)
    assert_type(onedsl.BatchNormSums.from_vector(sums.to_vector()), onedsl.BatchNormSums)
    grads = op.apply(sums, src, diff_dst, mean, variance, gamma=mean, outputs="all")
    assert_type(grads.diff_src, Float32)
    op.apply(sums=sums, src=src, diff_dst=diff_dst, mean=mean, variance=variance, out=grads)
    op.apply(sum([sums]), src, diff_dst, mean, variance)
    forward.apply(sum([moments]), src, mean, variance)


def relu(src: Float32, diff_dst: Float32, mean: Float32, variance: Float32) -> None:
    spec = onedsl.TensorSpec.of(src)
    op = onedsl.BatchNormActForwardTraining(1e-5, clip=6.0, activation="relu")
    result = op(src, mean, variance, gamma=mean, beta=mean, residual=src)
    assert_type(result, onedsl.BatchNormForward[Float32])
    assert_type(result.dst, Float32)
    assert_type(op.graph(spec, residual=True), onedsl.graph.Graph)

    gradient = onedsl.BatchNormActTrainingBackward(1e-5, "NXC", clip=6.0, activation="relu")
    dst = result.dst
    grads = gradient(src, diff_dst, mean, variance, mean, mean, dst=dst, diff_residual=True)
    assert_type(grads, onedsl.BatchNormActGradients[Float32])
    assert_type(grads.diff_residual, Float32 | None)
    print(grads.diff_src, grads.diff_gamma, grads.diff_beta, grads.diff_residual)
    assert_type(gradient.graph(spec, diff_residual=True), onedsl.graph.Graph)


def activations(src: Float32, diff_dst: Float32, mean: Float32, variance: Float32) -> None:
    op = onedsl.BatchNormActForwardTraining(1e-5, activation="leaky_relu", negative_slope=0.1)
    result = op(src, mean, variance, gamma=mean, beta=mean, residual=src)
    assert_type(result, onedsl.BatchNormForward[Float32])
    gradient = onedsl.BatchNormActTrainingBackward(1e-5, "NCX", activation="silu")
    grads = gradient(src, diff_dst, mean, variance, mean, mean, residual=src)
    assert_type(grads, onedsl.BatchNormActGradients[Float32])
    gradient(src, diff_dst, mean, variance, residual=src, diff_residual=False)


def specs(src: Float32) -> None:
    spec = onedsl.TensorSpec.of(src)
    assert_type(spec.shape, tuple[int, ...])
    assert_type(spec.dtype, Literal["f32", "bf16", "f16"])
    onedsl.TensorSpec(spec.shape, spec.dtype, spec.strides)


def spellings() -> None:
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    for spec in (
        onedsl.TensorSpec((4, 3)),
        onedsl.TensorSpec([4, 3], "bf16"),
        onedsl.TensorSpec((4, 3), "float16", strides=(1, 4)),
        onedsl.TensorSpec((4, 3), np.float32),
        onedsl.TensorSpec((4, 3), ml_dtypes.bfloat16),
        onedsl.TensorSpec((4, 3), np.dtype("float16")),
        onedsl.TensorSpec((4, 3), bfloat16),
    ):
        print(spec.strides, spec.byte_strides)
    image = onedsl.DataFormat("NCX")
    assert_type(image.channel_axis, int)
    assert_type(image.summed_axes(4), tuple[int, ...])
    assert_type(image.channels_of((2, 3, 4, 5)), tuple[int, ...])
    assert_type(image.broadcast_shape((2, 3, 4, 5)), tuple[int, ...])
    print(onedsl.BatchNormTrainingBackward(1e-5, image), onedsl.__version__)


def capabilities() -> None:
    try:
        found = onedsl.capabilities()
    except onedsl.UnsupportedError as error:
        print(error.status)
    except onedsl.OneDNNError as error:
        print(error.status)
    else:
        assert_type(found, onedsl.Capabilities)
        assert_type(found.runs_in_onednn("bf16", np.float32), bool)
        assert_type(found.num_threads, int)
        assert_type(found.support, tuple[onedsl.Support, ...])
        print(found, [row.message for row in found.support])


def looking(src: Float32, mean: Float32, variance: Float32) -> None:
    op = onedsl.BatchNormTrainingBackward(1e-5)
    text = op.graph(onedsl.TensorSpec.of(src)).to_json()
    graph = onedsl.graph.Graph.from_json(text)
    assert_type(graph.ops[0], onedsl.graph.GraphOp)
    assert_type(graph.ops[0].inputs[0], onedsl.graph.LogicalTensor)
    compiled = graph.repaired().compile()
    assert_type(compiled.graph, onedsl.graph.Graph)
    assert_type(compiled.graph.partitions()[0], onedsl.graph.Partition)
    print(compiled.graph.requested, compiled.graph.constants, compiled.graph.changes)
    written = op.graph(onedsl.TensorSpec.of(src), stats_dtype="f32", gamma=True, outputs="all")
    assert_type(written, onedsl.graph.Graph)
    try:
        run = written.compile()
    except onedsl.UnsupportedError as error:
        print(error.status)
    else:
        assert_type(run, onedsl.graph.CompiledGraph)
        warnings.simplefilter("ignore", onedsl.OneDNNDefectWarning)
        run(src=src, diff_dst=src, mean=mean, variance=variance, out={"diff_src": src.copy()})
    with onedsl.verbose():
        op(src, src, mean, variance)


def reference() -> None:
    problem = testing.random_problem((4, 3), "f32", "f32", data_format="NXC", seed=1)
    assert_type(problem, testing.Problem)
    src, diff_dst, mean, variance, gamma = problem
    expected = testing.batch_norm_backward(*problem, epsilon=1e-5, statistics="batch")
    assert_type(expected, testing.Gradients)
    assert_type(expected.terms, tuple[testing.Terms, ...] | None)
    actual = onedsl.BatchNormTrainingBackward(1e-5)(*problem)
    testing.assert_close(actual, expected, backend="onednn", factor=1 + testing.ONEDNN_SUM_ERROR)
    sum_error = testing.onednn_sum_error(4)
    testing.assert_close(actual, expected, factor=1 + sum_error)
    assert_type(testing.relative_l2(actual.diff_src, expected.diff_src), float)
    testing.batch_norm(src, gamma, epsilon=1e-5, mean=mean, variance=variance)
    frozen = testing.batch_normalization_grad(
        src, diff_dst, mean[None], variance[None], gamma[None], epsilon=1e-5
    )
    assert_type(frozen, testing.FrozenGradients)
    normalized = testing.batch_norm_forward_training(
        src, mean, variance, epsilon=1e-5, momentum=0.9, activation="relu", clip=6.0
    )
    assert_type(normalized, testing.Forward)
    op = onedsl.BatchNormActForwardTraining(1e-5, 0.9, clip=6.0, activation="relu")
    testing.assert_close(op(src, mean, variance), normalized)
    activated = testing.batch_norm_act_backward(
        src, diff_dst, mean, variance, dst=normalized.dst, epsilon=1e-5, activation="relu", clip=6.0
    )
    assert_type(activated, testing.ActGradients)
    print(testing.TOLERANCES["f32"], testing.SUM_TOLERANCES["f32"])


def main() -> None:
    x, ones = np.ones((4, 3), np.float32), np.ones(3, np.float32)
    direct(x, x, ones, ones)
    forward(x, ones, ones)
    parts(x, x, ones, ones)
    relu(x, x, ones, ones)
    looking(x, ones, ones)
    specs(x)
    spellings()
    capabilities()
    reference()


if __name__ == "__main__":
    main()
