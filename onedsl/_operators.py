"""The operator classes: thin dialects over the core.

A dialect has names, attributes and shapes, and holds no arithmetic. A new one subclasses
`Operator`, says how its ports are called, and hands its arguments on in the order of the core.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy.typing as npt

from . import _check, _core
from ._autotune import fastest
from ._errors import GammaIgnoredWarning
from ._spec import DataFormat, TensorSpec, parse_data_format
from ._types import CORE, check_statistics, dtype_name

Array = npt.NDArray[Any]
Backend = Literal["auto", "onednn", "native"]
Out = tuple[Array, Array | None, Array | None]


class BatchNormGradients(NamedTuple):
    """The outputs of the op. What was not asked for is None.

    Attributes
    ----------
    diff_src : ndarray
        Gradient with respect to src: src's shape, dtype and order in memory.
    diff_gamma, diff_beta : ndarray or None
        Gradients with respect to gamma and beta: shape (C,), the statistics' dtype.
    """

    diff_src: Any
    diff_gamma: Any = None
    diff_beta: Any = None


class Compiled:
    """An operator compiled for one `TensorSpec`: no look-up and no decision is left for the call.

    Made by the operators' ``compile``. May be called from many threads at once. In a process that
    was forked off after compiling, the first call compiles anew, for one thread: OpenMP's threads
    do not survive a fork.
    """

    __slots__ = ("_core", "_operator", "_run", "_sums", "gamma", "outputs", "spec", "stats_dtype")

    def __init__(
        self,
        operator: Operator,
        spec: TensorSpec,
        stats_dtype: npt.DTypeLike | str,
        gamma: bool,
        outputs: str,
        backend: str,
        autotune: bool,
    ) -> None:
        names = operator._names
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"spec must be a TensorSpec, not {type(spec).__name__}")
        if len(spec.shape) < 2:
            raise ValueError(
                f"{names.src} must have 2 dimensions or more, batch and channels at least; "
                f"the spec has shape {spec.shape}"
            )
        statistics = dtype_name(stats_dtype, "stats_dtype")
        check_statistics(spec.dtype, statistics, "stats_dtype", names.src)
        if not isinstance(gamma, bool):
            raise TypeError(f"gamma must be True or False, not {type(gamma).__name__}")
        sums = _check.outputs(outputs, names)
        itemsize = spec.numpy_dtype.itemsize
        self.spec = spec
        self.stats_dtype = statistics
        # With one output the op's document has gamma ignored: the plan is then made without.
        self.gamma = gamma and sums
        self.outputs = outputs
        self._sums = sums
        self._operator = operator

        def make(choice: _core.Backend) -> _core.Compiled:
            return _core.Compiled(
                operator._core,
                spec.shape,
                [step * itemsize for step in spec.strides],
                CORE[spec.dtype],
                CORE[statistics],
                self.gamma,
                sums,
                choice,
            )

        choice = _check.backend(backend)
        if autotune and choice is _core.Backend.auto:
            self._core = fastest(make, spec, statistics, self.gamma)
        else:
            self._core = make(choice)
        self._run = self._core.run

    @property
    def backend(self) -> str:
        """What runs: ``"onednn"`` or ``"native"``."""
        return self._core.backend

    @property
    def implementation(self) -> str:
        """What runs, for people to read."""
        return self._core.implementation

    @property
    def num_threads(self) -> int:
        """OpenMP threads of every call, fixed when this was compiled."""
        return self._core.num_threads

    def __call__(
        self,
        src: Array,
        diff_dst: Array,
        mean: Array,
        variance: Array,
        gamma: Array | None = None,
        *,
        out: Out | None = None,
    ) -> BatchNormGradients:
        """Compute the gradients.

        Parameters and results are those of the operator's own call. src and diff_dst must have the
        spec's shape, dtype and strides: nothing is copied here.

        Raises
        ------
        TypeError, ValueError
            As the operator does, and if an argument is not what this was compiled for.
        """
        if gamma is not None and not self._sums:
            self._operator._warn_of_gamma((src, diff_dst, mean, variance, gamma), stacklevel=3)
            gamma = None
        result = self._run(src, diff_dst, mean, variance, gamma, out)
        if result is None:
            result = self._explain((src, diff_dst, mean, variance, gamma), out)
        gradients: BatchNormGradients = self._operator._result(result, out)
        return gradients

    def _explain(self, inputs: Sequence[object], out: object) -> tuple[Any, Any, Any]:
        operator = self._operator
        arrays, buffers = _check.arguments(
            operator._names, operator._channel_axis, inputs, sums=self._sums, out=out
        )
        _check.compiled_for(
            operator._names,
            inputs,
            shape=self.spec.shape,
            strides=self.spec.strides,
            data=self.spec.dtype,
            statistics=self.stats_dtype,
            gamma=self.gamma,
        )
        return _ran(self._run(*arrays, buffers))

    def __repr__(self) -> str:
        return (
            f"<{self._operator!r} compiled for {self.spec!r}, stats_dtype={self.stats_dtype!r}, "
            f"gamma={self.gamma}, outputs={self.outputs!r}: {self.implementation}, "
            f"{self.num_threads} threads>"
        )


class Operator:
    """What the dialects share: an epsilon, where the channels are, and the way to the core."""

    __slots__ = ("_channel_axis", "_core", "_epsilon")

    _names: ClassVar[_check.Names]
    _gradients: ClassVar[type[Any]]

    def __init__(self, epsilon: float, channel_axis: int) -> None:
        self._epsilon = _check.epsilon(epsilon)
        self._channel_axis = channel_axis
        self._core = _core.Operator(self._epsilon, channel_axis)

    @property
    def epsilon(self) -> float:
        """Added to the variance, inside the root. The core works with it as float32 has it."""
        return self._epsilon

    def _attributes(self) -> dict[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={value!r}" for name, value in self._attributes().items())
        return f"onedsl.{type(self).__name__}({attributes})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._attributes() == other._attributes()

    def __hash__(self) -> int:
        return hash((type(self), *self._attributes().values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self._attributes().values())

    def _call(
        self, inputs: tuple[Any, Any, Any, Any, Any], outputs: str, out: Any, backend: str
    ) -> Any:
        sums = _check.outputs(outputs, self._names)
        choice = _check.backend(backend)
        if not sums and inputs[4] is not None:
            self._warn_of_gamma(inputs, stacklevel=4)
            inputs = (*inputs[:4], None)
        result = self._core.run(*inputs, sums, out, choice)
        if result is None:
            arrays, buffers = _check.arguments(
                self._names, self._channel_axis, inputs, sums=sums, out=out
            )
            result = _ran(self._core.run(*arrays, sums, buffers, choice))
        return self._result(result, out)

    def _result(self, result: tuple[Any, Any, Any], out: Any) -> Any:
        if type(out) is self._gradients:
            return out
        return self._gradients._make(result if out is None else out)

    def _warn_of_gamma(self, inputs: Sequence[object], *, stacklevel: int) -> None:
        """Warn that gamma is ignored, as the op's document says; it must be right all the same."""
        names = self._names
        _check.arguments(names, self._channel_axis, inputs, sums=False, out=None)
        warnings.warn(
            f"{names.gamma} is ignored: oneDNN's document says so where {names.diff_src} is the "
            f'only output. Ask for outputs="all" to have it used, or leave {names.gamma} out.',
            GammaIgnoredWarning,
            stacklevel=stacklevel,
        )


def _ran(result: tuple[Any, Any, Any] | None) -> tuple[Any, Any, Any]:
    if result is None:
        raise RuntimeError(
            "onedsl's core refused arguments that its checks had passed; please report this"
        )
    return result


class BatchNormTrainingBackward(Operator):
    """The gradient of batch normalization: oneDNN's Graph API op of the same name.

    Parameters
    ----------
    epsilon : float
        Added to the variance, inside the root. Positive and finite.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Where the channels are in the shape of src. It says nothing about memory: a tensor that is
        dense in either order is used where it lies.

    Notes
    -----
    With M elements a channel, for each channel [1]_:

    - xhat = (src - mean) / sqrt(variance + epsilon)
    - diff_beta = sum(diff_dst)
    - diff_gamma = sum(diff_dst * xhat)
    - diff_src = gamma / sqrt(variance + epsilon)
      * (diff_dst - diff_beta / M - xhat * diff_gamma / M)

    ``variance`` is the biased one (divided by M), and never an inverse standard deviation.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operation BatchNormTrainingBackward.

    Examples
    --------
    >>> op = onedsl.BatchNormTrainingBackward(epsilon=1e-5, data_format="NCX")
    >>> src = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> diff_dst = np.float32([1, 0, 0, 0]).reshape(1, 1, 2, 2)
    >>> grads = op(src, diff_dst, np.float32([2.5]), np.float32([1.25]), np.float32([2]))
    >>> grads.diff_beta
    array([1.], dtype=float32)
    """

    __slots__ = ("_data_format",)

    _names = _check.Names(
        "src", "diff_dst", "mean", "variance", "gamma", "diff_src", "diff_gamma", "diff_beta"
    )
    _gradients = BatchNormGradients

    def __init__(self, epsilon: float, data_format: DataFormat | str = DataFormat.NXC) -> None:
        self._data_format = parse_data_format(data_format)
        super().__init__(epsilon, self._data_format.channel_axis)

    @property
    def data_format(self) -> DataFormat:
        """Where the channels are in the shape of src."""
        return self._data_format

    def _attributes(self) -> dict[str, Any]:
        return {"epsilon": self._epsilon, "data_format": self._data_format.value}

    def __call__(
        self,
        src: Array,
        diff_dst: Array,
        mean: Array,
        variance: Array,
        gamma: Array | None = None,
        *,
        outputs: Literal["all", "diff_src"] = "all",
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormGradients:
        """Compute the gradients.

        Parameters
        ----------
        src : ndarray, (N, ..., C) or (N, C, ...), f32, bf16 or f16
            Input of the forward pass.
        diff_dst : ndarray, src's shape and dtype
            Gradient of the loss with respect to the output of the forward pass.
        mean, variance : ndarray, (C,), f32, or bf16 where src is bf16
            Those of src, as the forward pass had them; the variance is the biased one.
        gamma : ndarray, (C,), dtype of mean, optional
            Scale of the forward pass. Absent means ones.
        outputs : {"all", "diff_src"}
            What to compute. With ``"diff_src"`` gamma is ignored, as the op's document has it: the
            result is that of gamma = 1.
        out : BatchNormGradients or tuple of three arrays, optional
            Where to write. ``out.diff_src`` may be diff_dst itself; no other overlap. Give None
            for what is not asked for.
        backend : {"auto", "onednn", "native"}
            ``"auto"`` takes what is fastest and runs everywhere.

        Returns
        -------
        BatchNormGradients
            ``out`` if it was given. diff_src lies in memory as src does.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above. Nothing has been written then.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run these types on this CPU.

        Warns
        -----
        GammaIgnoredWarning
            If gamma is given with ``outputs="diff_src"``.

        Notes
        -----
        Memory is used where it lies if src is dense in any order of its axes and diff_dst has the
        same strides. Anything else (slices, negative or zero strides, unaligned items, a diff_dst
        in another order) is copied first; the logger ``onedsl`` tells so at level INFO.
        """
        gradients: BatchNormGradients = self._call(
            (src, diff_dst, mean, variance, gamma), outputs, out, backend
        )
        return gradients

    def compile(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: npt.DTypeLike | str = "f32",
        gamma: bool = True,
        outputs: Literal["all", "diff_src"] = "all",
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> Compiled:
        """Make the plan for one kind of src now, to be called many times.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of src, and so of diff_dst and diff_src.
        stats_dtype : str or dtype
            Of mean, variance, gamma and their gradients.
        gamma : bool
            Whether the calls will pass gamma. Without effect where outputs is ``"diff_src"``.
        outputs, backend
            As in a direct call.
        autotune : bool
            Let ``backend="auto"`` time both backends here and now, and keep the faster, instead of
            going by its rules. Takes some ten calls of each, and memory for three tensors
            meanwhile.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run these types on this CPU.
        """
        return Compiled(self, spec, stats_dtype, gamma, outputs, backend, autotune)
