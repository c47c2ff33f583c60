"""Compute the gradients of one batch-norm layer and check them against the float64 reference."""

import argparse

import numpy as np

import onedsl

argparse.ArgumentParser(description=__doc__).parse_args()

# Saved by the layer's forward pass: the input (N, H, W, C), and mean and variance per channel.
rng = np.random.default_rng(0)
src = rng.normal(0.5, 1.5, (8, 14, 14, 64)).astype(np.float32)
mean, variance = src.mean((0, 1, 2)), src.var((0, 1, 2))
gamma = np.ones(64, np.float32)  # the layer's scale

# The gradient of the loss with respect to the layer's output.
diff_dst = rng.normal(0.25, 1, src.shape).astype(np.float32)

# NXC: the channels are the last axis. For (N, C, H, W) it is "NCX".
op = onedsl.BatchNormTrainingBackward(epsilon=1e-5, data_format="NXC")
grads = op(src, diff_dst, mean, variance, gamma)
print(f"{op} returns")
for name, gradient in grads._asdict().items():
    print(f"  {name}: shape {gradient.shape}, {gradient.dtype}")

expected = onedsl.testing.batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon=1e-5)
onedsl.testing.assert_close(grads, expected)
print("All gradients agree with the float64 reference.")

# onedsl's native kernels run by default; oneDNN's run on request, if this CPU supports the type.
for dtype in ("f32", "bf16", "f16"):
    inputs = onedsl.testing.random_problem(src.shape, dtype)
    expected = onedsl.testing.batch_norm_backward(*inputs, epsilon=1e-5)
    for backend in ("auto", "onednn"):
        try:
            grads = op(*inputs, backend=backend)
        except onedsl.UnsupportedError as error:
            print(f"{dtype}, backend={backend!r}: {error}")
        else:
            onedsl.testing.assert_close(grads, expected, backend=backend)
            print(f"{dtype}, backend={backend!r}: agrees")
