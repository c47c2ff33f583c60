"""Mistakes that type checkers report, each with the expected error."""

import numpy as np

import onedsl

x, ones = np.ones((4, 3), np.float32), np.ones(3, np.float32)
spec = onedsl.TensorSpec((4, 3))

op = onedsl.BatchNormTrainingBackward(1e-5)
backprop = onedsl.BatchNormTrainingBackprop(1e-5)
forward = onedsl.BatchNormForwardTraining(1e-5)
sums, moments = op.reduce(x, x, ones, ones), forward.reduce(x)
grad = onedsl.BatchNormalizationGrad(1e-5)

onedsl.BatchNormTrainingBackwards(1e-5)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
onedsl.BatchNormTrainingBackward()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
onedsl.BatchNormTrainingBackward("1e-5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
onedsl.BatchNormTrainingBackward(1e-5, "NHWC")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
onedsl.BatchNormTrainingBackprop(1e-5, data_format="NHWC")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op.epsilon = 1.0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
onedsl.TensorSpec((4, 3), "f64")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
onedsl.TensorSpec((4, 3), float)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
onedsl.TensorSpec("4, 3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
spec.shape = (3, 4)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

op(x, x, ones)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
op(x, x, ones, ones, outputs="everything")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op(x, x, ones, ones, outputs="input_delta")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op(x, x, ones, ones, backend="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op(x, x, ones, ones, out=x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op(x, x, ones, ones, out=(x, ones))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op([1.0], x, ones, ones)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
op(x, x, ones, 1.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
_ = op(x, x, ones, ones).diff_sauce  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
backprop(x, x, ones, ones, outputs="diff_src")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
backprop(src=x, diff_dst=x, mean=ones, variance=ones)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
grad(x, x, ones, ones)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
grad(x, x, ones, ones, None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

op.reduce(x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
op.apply(moments, x, x, ones, ones)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op.apply(sums.to_vector(), x, x, ones, ones)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op.apply(sums, x, x, ones, ones, backend="onednn")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
forward.apply(sums, x, ones, ones)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
sums + moments  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
sums.count = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

op.graph((4, 3))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op.graph(spec, outputs="everything")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op.graph(spec, stats_dtype="f64")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
op.graph(spec, gamma=ones)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
only_deltas: onedsl.BatchNormDeltas = op(x, x, ones, ones)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

onedsl.capabilities().runs_in_onednn("f64")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
onedsl.testing.random_problem((4, 3), "f64")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
onedsl.testing.random_problem((4, 3), data_format="NHWC")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
