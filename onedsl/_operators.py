"""The operator classes: thin dialects over the core.

An array, here and in the docstrings, is NumPy's or any other on the CPU with ``__dlpack__``.

A dialect has names, attributes and shapes, and holds no arithmetic. A new one subclasses
`Operator`, says how its ports are called, and hands its arguments on in the order of the core.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _check, _core
from ._arrays import SupportsDLPack, mark_written
from ._autotune import fastest
from ._errors import GammaIgnoredWarning
from ._spec import DataFormat, TensorSpec, parse_data_format
from ._types import CORE, STATISTICS, dtype_name

Backend = Literal["auto", "onednn", "native"]
Out = tuple[SupportsDLPack, SupportsDLPack | None, SupportsDLPack | None]


class BatchNormGradients(NamedTuple):
    """The outputs of the op. What was not asked for is None.

    Attributes
    ----------
    diff_src : array
        Gradient with respect to src: src's shape, dtype and order in memory.
    diff_gamma, diff_beta : array or None
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

    __slots__ = (
        "_core",
        "_gamma",
        "_operator",
        "_outputs",
        "_run",
        "_spec",
        "_statistics",
        "_sums",
    )

    def __init__(
        self,
        operator: Operator,
        spec: TensorSpec,
        stats_dtype: npt.DTypeLike | str,
        stats_shape: Sequence[int] | None,
        gamma: bool,
        outputs: str,
        backend: str,
        autotune: bool,
    ) -> None:
        dialect = operator._dialect
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"spec must be a TensorSpec, not {type(spec).__name__}")
        if not isinstance(gamma, bool):
            raise TypeError(
                f"{dialect.names.gamma} must be True or False, not {type(gamma).__name__}"
            )
        statistics = TensorSpec(
            _check.statistics_shape(dialect, operator._layout, spec.shape) or stats_shape or (),
            dtype_name(stats_dtype, "stats_dtype"),
        )
        dialect.check_types(spec.dtype, statistics.dtype, "stats_dtype")
        _check.kept_axes(dialect, operator._layout, spec.shape, statistics.shape)
        sums = _check.outputs(outputs, dialect.names)
        self._spec = spec
        self._statistics = statistics
        # Where the document has gamma ignored, the plan is made without.
        self._gamma = gamma and (sums or not dialect.ignores_gamma)
        self._outputs = outputs
        self._sums = sums
        self._operator = operator

        def make(choice: _core.Backend) -> _core.Compiled:
            return _core.Compiled(
                operator._core,
                CORE[spec.dtype],
                spec.shape,
                spec.byte_strides,
                CORE[statistics.dtype],
                statistics.shape,
                statistics.byte_strides,
                self._gamma,
                sums,
                choice,
            )

        choice = _check.backend(backend)
        if autotune and choice is _core.Backend.auto:
            self._core = fastest(make, spec, statistics, self._gamma)
        else:
            self._core = make(choice)
        self._run = self._core.run

    @property
    def spec(self) -> TensorSpec:
        """Shape, dtype and strides of src."""
        return self._spec

    @property
    def stats_dtype(self) -> str:
        """Type of mean, variance, gamma and their gradients."""
        return self._statistics.dtype

    @property
    def stats_shape(self) -> tuple[int, ...]:
        """Shape of mean, variance, gamma and their gradients."""
        return self._statistics.shape

    @property
    def gamma(self) -> bool:
        """Whether calls take gamma."""
        return self._gamma

    @property
    def outputs(self) -> str:
        """What calls compute."""
        return self._outputs

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
        src: SupportsDLPack,
        diff_dst: SupportsDLPack,
        mean: SupportsDLPack,
        variance: SupportsDLPack,
        gamma: SupportsDLPack | None = None,
        *,
        out: Out | None = None,
    ) -> Any:
        """Compute the gradients.

        Parameters and results are those of the operator's own call, in its order. src and diff_dst
        must have the spec's shape, dtype and strides: nothing is copied here.

        Raises
        ------
        TypeError, ValueError
            As the operator does, and if an argument is not what this was compiled for.
        """
        if gamma is not None and not self._sums and self._operator._dialect.ignores_gamma:
            self._operator._warn_of_gamma((src, diff_dst, mean, variance, gamma), stacklevel=3)
            gamma = None
        result = self._run(src, diff_dst, mean, variance, gamma, out)
        if result is None:
            result = self._explain((src, diff_dst, mean, variance, gamma), out)
        return self._operator._result(result, out)

    def _explain(self, inputs: Sequence[object], out: object) -> tuple[Any, Any, Any]:
        operator = self._operator
        arrays, buffers = _check.arguments(
            operator._dialect, operator._layout, inputs, sums=self._sums, out=out
        )
        _check.compiled_for(
            operator._dialect,
            inputs,
            shape=self.spec.shape,
            strides=self.spec.strides,
            data=self.spec.dtype,
            stats_shape=self.stats_shape,
            statistics=self.stats_dtype,
            gamma=self.gamma,
        )
        return _ran(self._run(*arrays, buffers), inputs[0])

    def __repr__(self) -> str:
        return (
            f"<{self._operator!r} compiled for {self.spec!r}, stats_dtype={self.stats_dtype!r}, "
            f"gamma={self.gamma}, outputs={self.outputs!r}: {self.implementation}, "
            f"{self.num_threads} threads>"
        )


class Operator:
    """What the dialects share: an epsilon, the shape of the statistics, and the way to the core."""

    __slots__ = ("_core", "_epsilon", "_layout")

    _dialect: ClassVar[_check.Dialect]

    def __init__(self, epsilon: float, layout: _core.StatisticsShape) -> None:
        self._epsilon = _check.epsilon(epsilon)
        self._layout = layout
        self._core = _core.Operator(self._epsilon, self._dialect.statistics, layout)

    @property
    def epsilon(self) -> float:
        """Added to the variance, inside the root."""
        return self._epsilon

    def _attributes(self) -> dict[str, Any]:
        return {"epsilon": self._epsilon}

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
        sums = _check.outputs(outputs, self._dialect.names)
        choice = _check.backend(backend)
        if not sums and inputs[4] is not None and self._dialect.ignores_gamma:
            self._warn_of_gamma(inputs, stacklevel=4)
            inputs = (*inputs[:4], None)
        result = self._core.run(*inputs, sums, out, choice)
        if result is None:
            arrays, buffers = _check.arguments(
                self._dialect, self._layout, inputs, sums=sums, out=out
            )
            result = _ran(self._core.run(*arrays, sums, buffers, choice), inputs[0])
        return self._result(result, out)

    def _result(self, result: tuple[Any, Any, Any], out: Any) -> Any:
        if out is None:
            return self._dialect.gradients._make(result)
        if type(out[0]) is not np.ndarray:
            mark_written(out)
        return out if type(out) is self._dialect.gradients else self._dialect.gradients._make(out)

    def _warn_of_gamma(self, inputs: Sequence[object], *, stacklevel: int) -> None:
        """Warn that gamma is ignored, as the op's document says; it must be right all the same."""
        names = self._dialect.names
        _check.arguments(self._dialect, self._layout, inputs, sums=False, out=None)
        warnings.warn(
            f"{names.gamma} is ignored: oneDNN's document says so where {names.diff_src} is the "
            f'only output. Ask for outputs="all" to have it used, or leave {names.gamma} out.',
            GammaIgnoredWarning,
            stacklevel=stacklevel,
        )


class ChannelOperator(Operator):
    """A dialect whose attribute data_format says which axis of src has the channels."""

    __slots__ = ("_data_format",)

    def __init__(self, epsilon: float, data_format: DataFormat | str = DataFormat.NXC) -> None:
        self._data_format = parse_data_format(data_format)
        super().__init__(epsilon, self._data_format.layout)

    @property
    def data_format(self) -> DataFormat:
        """Where the channels are in the shape of the input."""
        return self._data_format

    def _attributes(self) -> dict[str, Any]:
        return {"epsilon": self._epsilon, "data_format": self._data_format.value}

    def compile(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: npt.DTypeLike | str = "f32",
        gamma: bool = True,
        outputs: str = "all",
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> Compiled:
        """Make the plan for one kind of input now, to be called many times.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of the input, and so of the two gradients of its shape.
        stats_dtype : str or dtype
            Of mean, variance, gamma and their gradients.
        gamma : bool
            Whether the calls will pass gamma. Without effect where it is ignored.
        outputs, backend
            As in a direct call.
        autotune : bool
            Let ``backend="auto"`` time both backends here and now, and keep the faster, instead of
            going by its rules. Takes some ten calls of each, and memory for three tensors
            meanwhile. It goes by time alone: over many elements a channel, oneDNN's f32 sums are
            the less accurate ones.

        Returns
        -------
        Compiled
            To be called with the arrays of a direct call, in the same order, and ``out``.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run these types on this CPU.
        """
        return Compiled(self, spec, stats_dtype, None, gamma, outputs, backend, autotune)


def _ran(result: tuple[Any, Any, Any] | None, src: object) -> tuple[Any, Any, Any]:
    """Give what came of checked, NumPy's arguments as arrays of the library of the caller's src."""
    if result is None:
        raise RuntimeError(
            "onedsl's core refused arguments that its checks had passed; please report this"
        )

    def delivered(array: Any) -> Any:
        return None if array is None else _core.export_array(array, src)

    diff_src, diff_gamma, diff_beta = result
    return delivered(diff_src), delivered(diff_gamma), delivered(diff_beta)


class BatchNormTrainingBackward(ChannelOperator):
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

    __slots__ = ()

    _dialect = _check.Dialect(
        _check.Names(
            "src", "diff_dst", "mean", "variance", "gamma", "diff_src", "diff_gamma", "diff_beta"
        ),
        BatchNormGradients,
        _core.Statistics.batch,
        STATISTICS,
        ignores_gamma=True,
    )

    def __call__(
        self,
        src: SupportsDLPack,
        diff_dst: SupportsDLPack,
        mean: SupportsDLPack,
        variance: SupportsDLPack,
        gamma: SupportsDLPack | None = None,
        *,
        outputs: Literal["all", "diff_src"] = "all",
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormGradients:
        """Compute the gradients.

        Parameters
        ----------
        src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
            Input of the forward pass. NumPy's, or any other array on the CPU with
            ``__dlpack__``; the results are of its kind.
        diff_dst : array, src's shape and dtype
            Gradient of the loss with respect to the output of the forward pass.
        mean, variance : array, (C,), f32, or bf16 where src is bf16
            Those of src, as the forward pass had them; the variance is the biased one.
        gamma : array, (C,), dtype of mean, optional
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


class BatchNormDeltas(NamedTuple):
    """The outputs of `BatchNormTrainingBackprop`. What was not asked for is None.

    Attributes
    ----------
    input_delta : array
        Gradient with respect to input_forward: its shape, dtype and order in memory.
    gamma_delta, beta_delta : array or None
        Gradients with respect to gamma and beta: shape (C,), the statistics' dtype.
    """

    input_delta: Any
    gamma_delta: Any = None
    beta_delta: Any = None


class BatchNormTrainingBackprop(ChannelOperator):
    """The same gradient as the oneDNN Graph specification spells it: BatchNormTrainingBackprop-1.

    Parameters
    ----------
    epsilon : float
        Added to the variance, inside the root. Positive and finite.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Where the channels are in the shape of input_forward.

    Notes
    -----
    The formulas are those of `BatchNormTrainingBackward`, with other names [1]_: src is
    input_forward, diff_dst is output_delta, diff_src is input_delta, diff_gamma and diff_beta are
    gamma_delta and beta_delta. mean and variance are the batch's, and the gradient flows through
    them. Unlike oneDNN's document, the specification does not have gamma ignored where input_delta
    is the only output, so it is used.

    References
    ----------
    .. [1] oneAPI specification, oneDNN Graph, operation BatchNormTrainingBackprop-1.

    Examples
    --------
    >>> op = onedsl.BatchNormTrainingBackprop(epsilon=1e-5, data_format="NCX")
    >>> input_forward = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> output_delta = np.float32([1, 0, 0, 0]).reshape(1, 1, 2, 2)
    >>> deltas = op(input_forward, output_delta, np.float32([2.5]), np.float32([1.25]))
    >>> deltas.beta_delta
    array([1.], dtype=float32)
    """

    __slots__ = ()

    _dialect = _check.Dialect(
        _check.Names(
            "input_forward",
            "output_delta",
            "mean",
            "variance",
            "gamma",
            "input_delta",
            "gamma_delta",
            "beta_delta",
        ),
        BatchNormDeltas,
        _core.Statistics.batch,
        STATISTICS,
    )

    def __call__(
        self,
        input_forward: SupportsDLPack,
        output_delta: SupportsDLPack,
        mean: SupportsDLPack,
        variance: SupportsDLPack,
        gamma: SupportsDLPack | None = None,
        *,
        outputs: Literal["all", "input_delta"] = "all",
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormDeltas:
        """Compute the gradients.

        Parameters
        ----------
        input_forward : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
            Input of the forward pass. NumPy's, or any other array on the CPU with
            ``__dlpack__``; the results are of its kind.
        output_delta : array, input_forward's shape and dtype
            Gradient of the loss with respect to the output of the forward pass.
        mean, variance : array, (C,), f32, or bf16 where input_forward is bf16
            Those of input_forward, as the forward pass had them; the variance is the biased one.
        gamma : array, (C,), dtype of mean, optional
            Scale of the forward pass. Absent means ones.
        outputs : {"all", "input_delta"}
            What to compute.
        out : BatchNormDeltas or tuple of three arrays, optional
            Where to write. ``out.input_delta`` may be output_delta itself; no other overlap.
        backend : {"auto", "onednn", "native"}
            ``"auto"`` takes what is fastest and runs everywhere.

        Returns
        -------
        BatchNormDeltas
            ``out`` if it was given. input_delta lies in memory as input_forward does.

        Raises
        ------
        TypeError, ValueError, UnsupportedError
            As `BatchNormTrainingBackward` does.

        Notes
        -----
        What is copied and what is not is as with `BatchNormTrainingBackward`.
        """
        deltas: BatchNormDeltas = self._call(
            (input_forward, output_delta, mean, variance, gamma), outputs, out, backend
        )
        return deltas


class BatchNormalizationGradients(NamedTuple):
    """The outputs of `BatchNormalizationGrad`. What was not asked for is None.

    Attributes
    ----------
    output_gradient : array
        OutputGradientTensor: the gradient with respect to input, its shape and order in memory.
    output_scale_gradient, output_bias_gradient : array or None
        OutputScaleGradientTensor and OutputBiasGradientTensor: mean's shape.
    """

    output_gradient: Any
    output_scale_gradient: Any = None
    output_bias_gradient: Any = None


class BatchNormalizationGrad(Operator):
    """The gradient for frozen statistics, as DirectML's DML_BATCH_NORMALIZATION_GRAD has it.

    Parameters
    ----------
    epsilon : float
        Epsilon of the struct: added to the variance, inside the root. Positive and finite.

    Notes
    -----
    The struct DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC [1]_, field by field:

    ========================= ======================== ========================================
    field                     here                     shape
    ========================= ======================== ========================================
    InputTensor               input                    1 to 8 dimensions
    InputGradientTensor       input_gradient           input's
    MeanTensor                mean                     input's rank; each size input's or 1
    VarianceTensor            variance                 mean's
    ScaleTensor               scale                    mean's
    OutputGradientTensor      output_gradient          input's
    OutputScaleGradientTensor output_scale_gradient    mean's
    OutputBiasGradientTensor  output_bias_gradient     mean's
    Epsilon                   epsilon                  a number
    ========================= ======================== ========================================

    mean and variance are constants, and no gradient flows through them. The sums go over the axes
    where mean's size is 1:

    - xhat = (input - mean) / sqrt(variance + epsilon)
    - output_bias_gradient = sum(input_gradient)
    - output_scale_gradient = sum(input_gradient * xhat)
    - output_gradient = scale / sqrt(variance + epsilon) * input_gradient

    All tensors are of one type, float32 or float16. float16 sums are held in wider types, and
    rounded at the end.

    References
    ----------
    .. [1] DirectML reference, DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC.

    Examples
    --------
    >>> op = onedsl.BatchNormalizationGrad(epsilon=1e-5)
    >>> input = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> one = np.ones((1, 1, 1, 1), np.float32)
    >>> grads = op(input, np.ones_like(input), one, one, one)
    >>> grads.output_bias_gradient
    array([[[[4.]]]], dtype=float32)
    """

    __slots__ = ()

    _dialect = _check.Dialect(
        _check.Names(
            "input",
            "input_gradient",
            "mean",
            "variance",
            "scale",
            "output_gradient",
            "output_scale_gradient",
            "output_bias_gradient",
        ),
        BatchNormalizationGradients,
        _core.Statistics.frozen,
        {"f32": ("f32",), "f16": ("f16",)},
        documents=_check.Names(
            "InputTensor",
            "InputGradientTensor",
            "MeanTensor",
            "VarianceTensor",
            "ScaleTensor",
            "OutputGradientTensor",
            "OutputScaleGradientTensor",
            "OutputBiasGradientTensor",
        ),
        max_rank=8,
    )

    def __init__(self, epsilon: float) -> None:
        super().__init__(epsilon, _core.StatisticsShape.broadcast)

    def __call__(
        self,
        input: SupportsDLPack,  # noqa: A002 - the field is InputTensor
        input_gradient: SupportsDLPack,
        mean: SupportsDLPack,
        variance: SupportsDLPack,
        scale: SupportsDLPack,
        *,
        outputs: Literal["all", "output_gradient"] = "all",
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormalizationGradients:
        """Compute the gradients.

        Parameters
        ----------
        input : array, 1 to 8 dimensions, f32 or f16
            Input of the forward pass. NumPy's, or any other array on the CPU with
            ``__dlpack__``; the results are of its kind.
        input_gradient : array, input's shape and dtype
            Gradient of the loss with respect to the output of the forward pass.
        mean, variance, scale : array, input's rank and dtype
            Of one shape, each size input's or 1. The variance is the biased one.
        outputs : {"all", "output_gradient"}
            What to compute.
        out : BatchNormalizationGradients or tuple of three arrays, optional
            Where to write. ``out.output_gradient`` may be input_gradient itself; no other overlap.
        backend : {"auto", "onednn", "native"}
            ``"auto"`` takes what is fastest and runs everywhere.

        Returns
        -------
        BatchNormalizationGradients
            ``out`` if it was given. output_gradient lies in memory as input does.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above; the message quotes the struct's field. Nothing has been
            written then.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run this on this CPU: f16 without
            AVX512_FP16, or kept axes that are no neighbours in memory.

        Notes
        -----
        What is copied and what is not is as with `BatchNormTrainingBackward`; besides, an input
        whose kept axes lie in memory in another order than in the shape is copied.
        """
        if scale is None:
            raise TypeError("scale (ScaleTensor) must be given: the struct has it not optional")
        gradients: BatchNormalizationGradients = self._call(
            (input, input_gradient, mean, variance, scale), outputs, out, backend
        )
        return gradients

    def compile(
        self,
        spec: TensorSpec,
        stats_shape: Sequence[int],
        *,
        outputs: Literal["all", "output_gradient"] = "all",
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> Compiled:
        """Make the plan for one kind of input now, to be called many times.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of input.
        stats_shape : sequence of int
            Shape of mean, variance and scale: input's rank, each size input's or 1.
        outputs, backend, autotune
            As in `BatchNormTrainingBackward.compile`.

        Returns
        -------
        Compiled
            To be called with the arrays of a direct call, in the same order, and ``out``.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        UnsupportedError
            As a direct call does.
        """
        stats_dtype = spec.dtype if isinstance(spec, TensorSpec) else "f32"
        return Compiled(self, spec, stats_dtype, stats_shape, True, outputs, backend, autotune)
