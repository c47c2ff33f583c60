"""Calls of JAX."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from cases.calls import Call, bytes_of
from cases.faults import OF_F64, OF_STATISTICS

from doors.base import Door

NAMES = "src", "gamma", "beta", "residual"


class Jax(Door):
    """The functions of onedsl.jax under jax.jit. The gradient of an activation is its layer's."""

    name = "jax"
    library = "jax"
    limit = 12  # each call is compiled
    has_words = True
    same_bits = ("BatchNormTrainingBackward",)
    is_row_major = True
    threads = "XLA runs the kernels on its own threads."
    accepted: Mapping[str, str] = {
        **dict.fromkeys(OF_F64, "JAX converts it to f32."),
        "src is no array": "JAX rejects it.",
        "src is too large": "JAX's arrays have memory for all elements.",
        "beta is absent": "JAX allows it.",
        "residual and dst are given": "The layer chooses what the gradient reads.",
    }

    def reason_against(self, call: Call) -> str:
        if call.fault in OF_STATISTICS and (call.is_forward or call.activation):
            return "The layer has no running statistics."
        if call.fault == "diff_dst has another shape" and call.activation:
            return "JAX rejects it."
        return super().reason_against(call)

    def unsupported(self, call: Call) -> str:
        if call.target.cls.__name__ == "BatchNormTrainingBackprop":
            return "It is another signature of BatchNormTrainingBackward, for NumPy only."
        if call.stats == "f16":
            return "Statistics must be f32, or bf16."
        if not call.omits("dst"):
            return "The layer chooses what the gradient reads."
        return ""

    def results(self, call: Call) -> set[str]:
        if call.is_forward:
            return {"dst", "batch_mean", "batch_variance"}
        is_layer = call.activation and call.omits("gamma")
        return call.results - ({"diff_gamma", "diff_beta"} if is_layer else set())

    def expected(self, call: Call) -> Any:
        return call.expected_of_batch if call.activation and not call.is_forward else call.expected

    def statistics(self, call: Call) -> str:
        return "f32" if call.is_forward else call.stats

    def operations(self, call: Call) -> list[str]:
        return self._operations_of(call, both=call.activation is not None)

    def transformed(self, function: Any) -> Any:
        """Transform a function of arrays."""
        import jax

        return jax.jit(function)

    def run(self, call: Call) -> dict[str, Any]:
        import jax

        v = {n: jax.numpy.asarray(a) for n, a in call.values.items() if a is not None}
        own = {name: np.asarray(array) for name, array in v.items()}  # copies of some of the call's
        before = bytes_of(own)
        results = self._compute(call, v)
        assert bytes_of(own) == before, call
        return results

    def _compute(self, call: Call, v: Any) -> dict[str, Any]:
        import onedsl.jax

        if not (call.activation or call.is_forward):
            options = {"epsilon": call.attributes["epsilon"], "data_format": call.data_format}
            options["statistics"] = "frozen" if call.target.broadcast else "batch"

            def gradients(v: Any) -> Any:
                return onedsl.jax.batch_norm_backward(**v, **options)

            return call.in_shape(call.named(map(np.asarray, self.transformed(gradients)(v))))
        if call.is_forward:
            names = "dst", "batch_mean", "batch_variance"
            results = self.transformed(lambda v: _layer(call, v))(v)
            return dict(zip(names, map(np.asarray, results), strict=True))
        found = self.transformed(lambda v: _gradients(call, v, v["diff_dst"]))(v)
        return {f"diff_{name}": np.asarray(gradient) for name, gradient in found.items()}

    def undifferentiable(self, call: Call) -> str:
        return "test_jax.py has those of frozen statistics." if call.target.broadcast else ""

    def second_derivatives(self, call: Call, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        import jax

        def total(v: Any) -> Any:
            found = _gradients(call, v, v["diff_dst"])
            return sum((found[name] * weights[f"diff_{name}"]).sum() for name in found)

        v = {n: jax.numpy.asarray(a) for n, a in call.values.items() if a is not None}
        if not call.activation:  # the operator has their gradients in any case
            ones = jax.numpy.ones_like(v["mean"])
            v = {"gamma": ones, **v, "beta": 0 * ones}
        second = jax.jit(jax.grad(total))(v)
        return {name: np.asarray(second[name]) for name in second}


def _layer(call: Call, v: Any) -> Any:
    import onedsl.jax

    options = call.attributes
    options.pop("momentum", None)
    inputs = (v.get(name) for name in NAMES[:3])
    return onedsl.jax.batch_norm(*inputs, residual=v.get("residual"), **options)


def _gradients(call: Call, v: Any, diff_dst: Any) -> Any:
    """Return the gradients of the inputs of a layer, by the inputs' names."""
    import jax

    given = {name: v[name] for name in NAMES if name in v}
    return jax.vjp(lambda given: _layer(call, given)[0], given)[1](diff_dst)[0]


class JaxVmap(Jax):
    """The functions of onedsl.jax under jax.vmap and jax.jit, over two calls."""

    name = "jax_vmap"
    limit = 3
    has_words = False

    def operations(self, call: Call) -> list[str]:
        return [operation for operation in super().operations(call) for _ in range(2)]

    def undifferentiable(self, call: Call) -> str:
        return "As without jax.vmap, which JAX applies to the derivative."

    def transformed(self, function: Any) -> Any:
        import jax

        def first_of_two(v: Any) -> Any:
            two = jax.tree.map(lambda a: jax.numpy.stack([a, a[::-1]]), v)
            return jax.tree.map(lambda a: a[0], jax.vmap(function)(two))

        return jax.jit(first_of_two)
