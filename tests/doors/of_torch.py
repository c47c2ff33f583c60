"""Calls of PyTorch: operators, `enable`, layers, and compiled functions."""

import contextlib
import functools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cases.calls import EMPTY, MOMENTUM, SIZES, Call
from cases.faults import OF_F64, OF_STATISTICS
from fuzz import arrays
from helpers import EPSILON

from doors.base import Door

NAMES = {"diff_src": "src", "diff_gamma": "gamma", "diff_beta": "beta", "diff_residual": "residual"}
"""The inputs by the names of their gradients, in the order of the results."""


def channels_second(call: Call) -> dict[str, Any]:
    """Return the inputs as tensors whose channels are their second axis."""
    values = {}
    for name, array in call.values.items():
        tensor = None if array is None else arrays.to_torch(array)
        if tensor is not None and tensor.ndim > 1 and call.data_format == "NXC":
            tensor = tensor.movedim(-1, 1)
        values[name] = tensor
    return values


def to_numpy(call: Call, tensor: Any) -> Any:
    """Return an array of the call's data format."""
    if tensor.ndim > 1 and call.data_format == "NXC":
        tensor = tensor.movedim(1, -1)
    return arrays.to_numpy(tensor.detach())


def as_tensor(call: Call, array: Any) -> Any:
    """Return a tensor whose channels are its second axis."""
    tensor = arrays.to_torch(array)
    return tensor.movedim(-1, 1) if tensor.ndim > 1 and call.data_format == "NXC" else tensor


def weighted_derivatives(
    call: Call, gradients: Any, weights: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the gradient of a weighted sum of gradients by inputs, by the inputs' names."""
    import torch

    factors = [
        as_tensor(call, array.reshape(-1) if gradient.ndim == 1 else array)
        for gradient, array in zip(gradients, weights.values(), strict=False)
    ]
    total = sum((a * b).sum() for a, b in zip(gradients, factors, strict=True))
    second = torch.autograd.grad(total, [*inputs.values()], allow_unused=True)
    pairs = zip(inputs, second, strict=True)
    return {name: to_numpy(call, tensor) for name, tensor in pairs if tensor is not None}


class TorchDoor(Door):
    """The base class of this file's doors."""

    library = "torch"
    errors = (TypeError, ValueError, RuntimeError, IndexError)
    accepted: Mapping[str, str] = {"src is no array": "PyTorch rejects it."}

    def unsupported(self, call: Call) -> str:
        if call.target.cls.__name__ == "BatchNormTrainingBackprop":
            return "It is another signature of BatchNormTrainingBackward, for NumPy only."
        if call.stats != "f32":
            return "Statistics must be f32."
        if call.problem == "rank 4 read-only":
            return "PyTorch's tensors are writable."
        if call.problem in EMPTY:
            return "PyTorch computes batches with fewer than two values per channel."
        return ""

    def strides(self, call: Call) -> tuple[int, ...]:
        import torch

        src = channels_second(call)["src"]
        strides: tuple[int, ...] = to_numpy(call, torch.empty_like(src)).strides
        return strides


class TorchOperator(TorchDoor):
    """The operators of the namespace onedsl, and `onedsl.torch.batch_norm_backward`."""

    name = "torch_op"
    limit = 300
    has_words = True

    accepted: Mapping[str, str] = {
        **TorchDoor.accepted,
        **dict.fromkeys(OF_STATISTICS, "The operator has no running statistics."),
        "beta is absent": "PyTorch allows it.",
    }

    def reason_against(self, call: Call) -> str:
        is_gradient = not (call.activation or call.is_forward)
        has_inverse = call.activation and not call.is_forward
        if call.fault in ("epsilon is NaN", "variance is f64") and has_inverse:
            return "The operator has an inverse standard deviation."
        if call.fault in OF_STATISTICS and not call.is_forward:
            return self.unsupported(call)
        if call.fault == "mean is absent" and not is_gradient:
            return "PyTorch rejects it."
        return super().reason_against(call)

    def unsupported(self, call: Call) -> str:
        is_gradient = not (call.activation or call.is_forward)
        if is_gradient and (call.dtype, call.stats) == ("bf16", "bf16"):
            call = replace(call, stats="f32")  # which the other operators need
        return super().unsupported(call)

    def results(self, call: Call) -> set[str]:
        if call.is_forward:
            return {"dst", "batch_mean", "batch_variance"}
        return call.results | ({"diff_residual"} if not call.omits("dst") else set())

    def operations(self, call: Call) -> list[str]:
        return self._operations_of(call, both=False)

    def run(self, call: Call) -> dict[str, Any]:
        import torch

        if not (call.activation or call.is_forward):
            inputs = [None if a is None else arrays.to_torch(a) for a in call.values.values()]
            found = call.named(map(arrays.to_numpy, self._gradients(call, *inputs)))
            return call.in_shape(found)
        v = channels_second(call)
        attributes = call.attributes
        parameters = [attributes[n] for n in ("clip", "negative_slope") if n in attributes]
        own = attributes.get("activation"), *(parameters or [None])
        if call.is_forward:
            inputs = [v["src"], v["gamma"], v["beta"], v.get("residual")]
            dst, mean, _, variance, *_ = torch.ops.onedsl.batch_norm_training(
                *inputs, call.attributes["epsilon"], *own
            )
            count = v["src"].numel() // mean.numel()
            results = {"dst": dst, "batch_mean": mean}
            results["batch_variance"] = variance * ((count - 1) / count)
        else:
            inverse_stddev = (v["variance"].double() + EPSILON).rsqrt().float()
            gradients = torch.ops.onedsl.batch_norm_training_backward(
                *(v["diff_dst"], v["src"], v["mean"], inverse_stddev, v["gamma"]),
                *(v["gamma"], v["beta"], v["residual"], v["dst"], *own),
            )
            results = dict(zip(call.fields, gradients, strict=True))
            if v["residual"] is None and v["dst"] is None:
                del results["diff_residual"]
        return {name: to_numpy(call, tensor) for name, tensor in results.items()}

    def undifferentiable(self, call: Call) -> str:
        return "The derivative is that of the layers." if call.activation else ""

    def second_derivatives(self, call: Call, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        v = channels_second(call)
        names = [name for name in ("src", "diff_dst", "gamma") if v[name] is not None]
        inputs = {name: v[name].requires_grad_() for name in names}
        gradients = self._gradients(replace(call, data_format="NCX"), *v.values())
        return weighted_derivatives(call, gradients, weights, inputs)

    def _gradients(self, call: Call, *inputs: Any) -> Any:
        import onedsl.torch

        return onedsl.torch.batch_norm_backward(
            *inputs,
            epsilon=call.attributes["epsilon"],
            data_format=call.data_format,
            statistics="frozen" if call.target.broadcast else "batch",
        )


def _of_biased(running: Any, v: Mapping[str, Any], processes: int) -> Any:
    """Return a running variance of PyTorch as if it had the biased variance, as oneDNN's."""
    count = processes * v["src"].numel() // running.numel()
    kept = v["variance"].double() * MOMENTUM
    return (kept + (running.double() - kept) * ((count - 1) / count)).float()


def _call_layer(layer: Any, v: Mapping[str, Any], running: list[Any], *inputs: Any) -> Any:
    """Call a layer with the parameters and running statistics of a call."""
    import torch

    state = {"weight": v["gamma"], "bias": v.get("beta")}
    state |= {"running_mean": running[0], "running_var": running[1]}
    state = {name: tensor for name, tensor in state.items() if tensor is not None}
    return torch.func.functional_call(layer, state, inputs)


class TorchAutograd(TorchDoor):
    """The base class of the doors that PyTorch's autograd differentiates."""

    of_batch = True
    processes = 1
    """How many processes have the batch."""
    accepted: Mapping[str, str] = {
        **TorchDoor.accepted,
        "epsilon is NaN": "PyTorch computes it.",
        "src is f64": "PyTorch computes it.",
        "src is too large": "PyTorch needs memory for its results.",
        "diff_dst is f64": "Autograd converts it.",
        "residual is f64": "PyTorch computes it.",
        "residual has another shape": "PyTorch updates the statistics, and then fails to add it.",
        "mean is absent": "Statistics are those of the batch.",
        "beta is absent": "PyTorch allows it.",
        "residual and dst are given": "Autograd chooses what the gradient reads.",
        "dst has another shape": "Autograd chooses what the gradient reads.",
    }

    def reason_against(self, call: Call) -> str:
        if call.fault in OF_STATISTICS and not (call.is_forward or call.target.broadcast):
            return "Statistics are those of the batch."
        return super().reason_against(call)

    def unsupported(self, call: Call) -> str:
        if not call.omits("dst"):
            return "Autograd chooses what the gradient reads."
        return super().unsupported(call)

    def results(self, call: Call) -> set[str]:
        """Return the results that PyTorch has."""
        if call.is_forward:
            return {"dst", "running_mean", "running_variance"}
        of_parameters = {"diff_gamma", "diff_beta"} if call.omits("gamma") else set()
        return call.results - of_parameters

    def operations(self, call: Call) -> list[str]:
        return self._operations_of(call, both=not call.target.broadcast)

    def forward(self, call: Call, v: Mapping[str, Any], running: list[Any]) -> Any:
        """Return dst."""
        raise NotImplementedError

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Return the scope of the passes."""
        return contextlib.nullcontext()

    def run(self, call: Call) -> dict[str, Any]:
        return self._results(call, self._tensors(call))

    def between_passes(self, call: Call) -> list[str]:
        parameters = [] if call.omits("gamma") else ["gamma", "beta"]
        residual = ["residual"] if call.activation and not call.omits("residual") else []
        return ["src", *parameters, *residual, "dst"]

    def run_with_change(self, call: Call, name: str) -> dict[str, Any] | None:
        v = self._tensors(call)
        if name != "dst":  # which is new, unlike the case's arrays
            v[name] = v[name].detach().clone().requires_grad_()
        try:
            return self._results(call, v, name)
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                return None
            raise

    def _results(self, call: Call, v: Mapping[str, Any], changed: str = "") -> dict[str, Any]:
        """Return the results of both passes. A tensor may change between them."""
        import torch

        # onedsl needs them, or parameters, for inputs of 16 bits.
        has_running = call.is_forward or call.target.broadcast or call.dtype != "f32"
        running = [v[name].clone() if has_running else None for name in ("mean", "variance")]
        if call.is_forward:
            self._writes(*(arrays.to_numpy(statistic) for statistic in running))
        with self.scope():
            dst = self.forward(call, v, running)
            if changed:
                with torch.no_grad():
                    (dst if changed == "dst" else v[changed]).mul_(-2)
            if call.is_forward:
                results = {"dst": dst, "running_mean": running[0]}
                results["running_variance"] = _of_biased(running[1], v, self.processes)
            else:
                needed = self._needed(v)
                gradients = torch.autograd.grad(dst, [*needed.values()], v["diff_dst"])
                names = call.fields if call.target.broadcast else needed
                results = dict(zip(names, gradients, strict=True))
        return call.in_shape({name: to_numpy(call, tensor) for name, tensor in results.items()})

    def undifferentiable(self, call: Call) -> str:
        return ""

    def second_derivatives(self, call: Call, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch

        v = self._tensors(call)
        v["diff_dst"].requires_grad_()
        running = [v[name] if call.target.broadcast else None for name in ("mean", "variance")]
        with self.scope():
            dst = self.forward(call, v, running)
            needed = {NAMES[name]: tensor for name, tensor in self._needed(v).items()}
            if not call.target.broadcast:
                weights = {name: weights[name] for name in self._needed(v)}
            gradients = torch.autograd.grad(
                dst, [*needed.values()], v["diff_dst"], create_graph=True
            )
            return weighted_derivatives(
                call, gradients, weights, {**needed, "diff_dst": v["diff_dst"]}
            )

    def _tensors(self, call: Call) -> dict[str, Any]:
        """Return the inputs. Those that have gradients require them."""
        v = channels_second(call)
        if v["gamma"] is not None and "beta" not in v:
            v["beta"] = v["gamma"] * 0
        for tensor in self._needed(v).values():
            tensor.requires_grad_()
        return v

    def _needed(self, v: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs that have gradients, by the gradients' names."""
        return {n: v[name] for n, name in NAMES.items() if v.get(name) is not None}


class PyTorch(TorchAutograd):
    """PyTorch's function, with PyTorch's own kernels."""

    def forward(self, call: Call, v: Mapping[str, Any], running: list[Any]) -> Any:
        import torch

        return torch.nn.functional.batch_norm(
            *(v["src"], *running, v["gamma"], v.get("beta"), not call.target.broadcast),
            *(1 - MOMENTUM, call.attributes["epsilon"]),
        )


class TorchEager(PyTorch):
    """PyTorch's function, with the kernels that `enable` registers."""

    name = "torch_eager"

    def unsupported(self, call: Call) -> str:
        if call.activation:
            return "PyTorch's functions compute the activation."
        return super().unsupported(call)

    def strides(self, call: Call) -> tuple[int, ...]:
        """Return the strides of PyTorch's own results."""
        tensor, *_ = PyTorch().run(call).values()
        strides: tuple[int, ...] = tensor.strides
        return strides

    def scope(self) -> contextlib.AbstractContextManager[object]:
        import onedsl.torch

        scope: contextlib.AbstractContextManager[object] = onedsl.torch.enable()
        return scope


class TorchLayer(TorchAutograd):
    """The layers with an activation."""

    name = "torch_layer"
    limit = 300

    def unsupported(self, call: Call) -> str:
        if not call.activation:
            return "The layers have an activation."
        if len(SIZES[call.problem].spatial) > 3:
            return "The layers have at most three dimensions of positions."
        return super().unsupported(call)

    def forward(self, call: Call, v: Mapping[str, Any], running: list[Any]) -> Any:
        import onedsl.torch

        src, residual = v["src"], v["residual"]
        layer = getattr(onedsl.torch, f"BatchNormAct{max(src.ndim - 2, 1)}d")(
            *(src.shape[1], call.attributes["epsilon"], 1 - MOMENTUM, v["gamma"] is not None),
            track_running_stats=running[0] is not None,
            **call.activation.attributes if call.activation else {},
        )
        return _call_layer(layer, v, running, *([src] if residual is None else [src, residual]))


class TorchSync(PyTorch):
    """SyncBatchNorm in one of two processes that have the same batch. Their exchange is simulated.

    test_torch_sync.py has the exchange.
    """

    name = "torch_sync"
    limit = 300
    processes = 2
    accepted: Mapping[str, str] = {
        name: reason
        for name, reason in TorchAutograd.accepted.items()
        if name not in ("epsilon is NaN", "src is f64")
    }

    def unsupported(self, call: Call) -> str:
        if call.activation:
            return "PyTorch's functions compute the activation."
        if call.target.broadcast:
            return "Evaluation is that of PyTorch's layers."
        return super().unsupported(call)

    def operations(self, call: Call) -> list[str]:
        return [name for name in super().operations(call) for _ in ("reduce", "apply")]

    undifferentiable = Door.undifferentiable

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        from unittest import mock

        from onedsl.torch import _sync

        def gather(mine: Any, group: object) -> Any:
            return mine.expand(2, -1).contiguous()

        group = type("Group", (), {})()
        with (
            mock.patch.object(_sync, "_gather", gather),
            mock.patch.object(_sync.SyncBatchNorm, "_group", return_value=group),
        ):
            yield

    def forward(self, call: Call, v: Mapping[str, Any], running: list[Any]) -> Any:
        import onedsl.torch

        src = v["src"]
        layer = onedsl.torch.SyncBatchNorm(
            *(src.shape[1], call.attributes["epsilon"], 1 - MOMENTUM, v["gamma"] is not None),
            track_running_stats=running[0] is not None,
        )
        return _call_layer(layer, v, running, src)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Let PyTorch's interpreter run the graphs of the backend, without inductor's code."""
    from unittest import mock

    from functorch.compile import make_boxed_func

    from onedsl.torch import _backend

    def inner_compile(graph: Any, *_: Any, **__: Any) -> Any:
        return make_boxed_func(graph.forward)

    compile_fx = functools.partial(_backend.compile_fx, inner_compile=inner_compile)
    with mock.patch.object(_backend, "compile_fx", compile_fx):
        yield


class TorchCompiled(TorchAutograd):
    """A function that torch.compile compiles with the backend of onedsl, up to inductor's code.

    test_torch_backend.py has the code.
    """

    name = "torch_compiled"
    limit = 15  # each call is traced
    threads = "It calls the operators of torch_op."
    accepted: Mapping[str, str] = {
        **TorchAutograd.accepted,
        **dict.fromkeys(OF_F64, "PyTorch's compiler converts it."),
    }

    def unsupported(self, call: Call) -> str:
        if call.target.broadcast:
            return "The backend compiles training."
        return super().unsupported(call)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with warnings.catch_warnings():  # PyTorch's compilers use deprecated parts of PyTorch
            warnings.simplefilter("ignore")
            with interpreted():
                yield

    def undifferentiable(self, call: Call) -> str:
        return "PyTorch does not support it for compiled functions."

    def forward(self, call: Call, v: Mapping[str, Any], running: list[Any]) -> Any:
        import torch
        from torch.nn import functional

        def function(src: Any, gamma: Any, beta: Any, residual: Any, *running: Any) -> Any:
            options = 1 - MOMENTUM, call.attributes["epsilon"]
            dst = functional.batch_norm(src, *running, gamma, beta, True, *options)
            dst = dst if residual is None else dst + residual
            return call.activation.pytorch(functional, dst) if call.activation else dst

        torch._dynamo.reset()
        compiled = torch.compile(function, backend="onedsl", fullgraph=True)
        return compiled(v["src"], v["gamma"], v.get("beta"), v.get("residual"), *running)
