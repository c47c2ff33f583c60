"""The gradients of one batch-norm layer, checked against the float64 reference."""

import numpy as np

import onedsl

rng = np.random.default_rng(0)
src = rng.normal(0.5, 1.5, (8, 14, 14, 64)).astype(np.float32)  # N, H, W, C
diff_dst = rng.normal(0.25, 1, src.shape).astype(np.float32)
mean, variance = src.mean((0, 1, 2)), src.var((0, 1, 2))  # as the forward pass had them
gamma = np.ones(64, np.float32)

op = onedsl.BatchNormTrainingBackward(epsilon=1e-5, data_format="NXC")
grads = op(src, diff_dst, mean, variance, gamma)
for name, gradient in grads._asdict().items():
    print(f"{name}: shape {gradient.shape}, {gradient.dtype}")

expected = onedsl.testing.batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon=1e-5)
onedsl.testing.assert_gradients_close(grads, expected)
print("All three agree with the float64 reference.")
