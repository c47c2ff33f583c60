"""Second derivatives are those of the float64 references, by finite differences."""

import numpy as np
from cases.calls import gradients_of_batch
from cases.laws import law
from helpers import EPSILON

import onedsl

STEP = 1e-6
INPUTS = "src", "gamma", "beta", "residual", "diff_dst"


@law("derivatives")
def test_second_derivatives(door, calls):
    """Of a weighted sum of the gradients, in a random direction of each input."""
    for call in calls:
        rng = np.random.default_rng(1)  # random_problem begins with 0
        values = {n: a if a is None else a.astype(np.float64) for n, a in call.values.items()}
        first = call.named(gradients_of_batch(call, values))
        # Of sizes that give all channels the same share, also one of small variance.
        deviation = np.sqrt(values["variance"] + EPSILON)
        shape = onedsl.DataFormat(call.data_format).broadcast_shape(values["src"].shape)
        sizes = dict.fromkeys(("src", call.fields[0]), deviation.reshape(shape))
        weights = {
            n: (rng.standard_normal(a.shape) * sizes.get(n, 1)).astype("f4")
            for n, a in first.items()
        }
        found = door.second_derivatives(call, weights)
        names = door.results(call)

        def total(values, call=call, weights=weights, names=names):
            gradients = call.named(gradients_of_batch(call, values))
            return sum((gradients[name] * weights[name]).sum() for name in names)

        for name in [name for name in INPUTS if values.get(name) is not None]:
            direction = rng.standard_normal(values[name].shape) * sizes.get(name, 1)
            up, down = (
                total(values | {name: values[name] + step * direction}) for step in (STEP, -STEP)
            )
            expected = (up - down) / (2 * STEP)
            second = found.get(name, np.zeros_like(direction)).astype(np.float64)
            scale = np.linalg.norm(second * sizes.get(name, 1)) + 1e-3 * np.linalg.norm(
                values["diff_dst"]
            )
            assert abs((second * direction).sum() - expected) <= 1e-4 * scale, (call, name)
