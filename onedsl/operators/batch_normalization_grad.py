"""DirectML's DML_BATCH_NORMALIZATION_GRAD."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from .. import _core
from ..tensors.arrays import AnyArray
from ..tensors.dtypes import Backend
from ..tensors.spec import TensorSpec
from . import _validation
from ._compiled import Compiled
from ._operator import Operator
from ._schema import OpSchema, Port
from ._sums import BatchNormSums

Out = tuple[AnyArray, AnyArray | None, AnyArray | None]


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


SCHEMA = OpSchema(
    _core.Operation.training_backward,
    inputs=(
        Port("input", "tensor", document="InputTensor"),
        Port("input_gradient", "tensor", document="InputGradientTensor"),
        Port("mean", "statistic", document="MeanTensor"),
        Port("variance", "statistic", document="VarianceTensor"),
        Port("scale", "statistic", document="ScaleTensor"),
    ),
    outputs=(
        Port("output_gradient", "tensor", over="input_gradient", document="OutputGradientTensor"),
        Port("output_scale_gradient", "statistic", document="OutputScaleGradientTensor"),
        Port("output_bias_gradient", "statistic", document="OutputBiasGradientTensor"),
    ),
    result=BatchNormalizationGradients,
    statistics=_core.Statistics.frozen,
    types={"f32": ("f32",), "f16": ("f16",)},
    ranks=(1, 8),
    always=("output_gradient",),
    ask=('outputs="all"', 'outputs="output_gradient"'),
)


class CompiledBatchNormalizationGrad(Compiled[BatchNormalizationGradients]):
    """What `BatchNormalizationGrad.compile` makes."""

    __slots__ = ()

    def __call__(
        self,
        input: AnyArray,  # noqa: A002 - the field is InputTensor
        input_gradient: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        scale: AnyArray,
        *,
        out: Out | None = None,
    ) -> BatchNormalizationGradients:
        """Compute the gradients.

        Parameters
        ----------
        input, input_gradient : array
            Of the spec's shape, dtype and strides.
        mean, variance, scale : array
            Of ``stats_shape`` and ``stats_dtype``.
        out : BatchNormalizationGradients or tuple of three arrays, optional
            As in a direct call.

        Returns
        -------
        BatchNormalizationGradients
            ``out`` if it was given.

        Raises
        ------
        TypeError, ValueError
            As a direct call does, and if an argument is not what this was compiled for. Nothing
            has been written then.

        Notes
        -----
        input and input_gradient are never copied. Statistics that are not contiguous are.
        """
        return self._call((input, input_gradient, mean, variance, scale), out)


class BatchNormalizationGrad(Operator[BatchNormalizationGradients]):
    """The gradient for frozen statistics, as DirectML's DML_BATCH_NORMALIZATION_GRAD has it.

    Parameters
    ----------
    epsilon : float
        Epsilon of the struct: added to the variance, inside the root. Positive and finite.

    Notes
    -----
    The struct DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC [1]_, field by field:

    | field                     | here                  | shape                                  |
    |---------------------------|-----------------------|----------------------------------------|
    | InputTensor               | input                 | 1 to 8 dimensions                      |
    | InputGradientTensor       | input_gradient        | input's                                |
    | MeanTensor                | mean                  | input's rank; each size input's or 1   |
    | VarianceTensor            | variance              | mean's                                 |
    | ScaleTensor               | scale                 | mean's                                 |
    | OutputGradientTensor      | output_gradient       | input's                                |
    | OutputScaleGradientTensor | output_scale_gradient | mean's                                 |
    | OutputBiasGradientTensor  | output_bias_gradient  | mean's                                 |
    | Epsilon                   | epsilon               | a number                               |

    mean and variance are constants, and no gradient flows through them. The sums go over the axes
    where mean's size is 1:

    - xhat = (input - mean) / sqrt(variance + epsilon)
    - output_bias_gradient = sum(input_gradient)
    - output_scale_gradient = sum(input_gradient * xhat)
    - output_gradient = scale / sqrt(variance + epsilon) * input_gradient

    All tensors are of one type, float32 or float16. float16 sums are held in wider types, and
    rounded at the end.

    The range of numbers for which results are right is that of `BatchNormTrainingBackward`.

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

    _schema = SCHEMA

    def __init__(self, epsilon: float) -> None:
        super().__init__(epsilon, _core.StatisticsShape.broadcast)

    def __call__(
        self,
        input: AnyArray,  # noqa: A002 - the field is InputTensor
        input_gradient: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        scale: AnyArray,
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
            What computes: onedsl's own kernels (``"auto"`` and ``"native"``), or the op of oneDNN's
            Graph API (``"onednn"``). The former run every type on every CPU.

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
        return self._call(
            (input, input_gradient, mean, variance, scale),
            _validation.outputs(outputs, SCHEMA),
            out,
            backend,
        )

    def reduce(
        self,
        input: AnyArray,  # noqa: A002 - the field is InputTensor
        input_gradient: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
    ) -> BatchNormSums:
        """Make the sums of a part of the batch: the first of a call's two passes.

        Parameters
        ----------
        input, input_gradient : array
            As in a direct call; a part of the batch, of any size, empty as well.
        mean, variance : array
            As in a direct call: those of the whole batch.

        Returns
        -------
        BatchNormSums
            To be added to those of the other parts, and given to `apply`.

        Notes
        -----
        The statistics are frozen, so that output_gradient needs no sums: a direct call on each part
        has it. The sums are for the two other gradients, which are rounded once for all parts.

        Raises
        ------
        TypeError, ValueError
            As a direct call does.
        """
        return self._reduce(BatchNormSums, (input, input_gradient, mean, variance))

    def apply(
        self,
        sums: BatchNormSums,
        input: AnyArray,  # noqa: A002 - the field is InputTensor
        input_gradient: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        scale: AnyArray,
        *,
        outputs: Literal["all", "output_gradient"] = "all",
        out: Out | None = None,
    ) -> BatchNormalizationGradients:
        """Compute the gradients of a part of the batch: the second of a call's two passes.

        Parameters
        ----------
        sums : BatchNormSums
            Those of all parts, added up.
        input, input_gradient, mean, variance, scale, outputs, out
            As in a direct call; input and input_gradient are a part of the batch.

        Returns
        -------
        BatchNormalizationGradients
            ``out`` if it was given. output_gradient is the part's; the others are the whole
            batch's, and the same of every part.

        Raises
        ------
        TypeError, ValueError
            As a direct call does, and if the sums are not such. Nothing has been written then.
        """
        return self._apply(
            BatchNormSums,
            sums,
            (input, input_gradient, mean, variance, scale),
            _validation.outputs(outputs, SCHEMA),
            out,
        )

    def compile(
        self,
        spec: TensorSpec,
        stats_shape: Sequence[int],
        *,
        outputs: Literal["all", "output_gradient"] = "all",
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> CompiledBatchNormalizationGrad:
        """Make the plan for one kind of input now, to be called many times.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of input.
        stats_shape : sequence of int
            Shape of mean, variance and scale: input's rank, each size input's or 1.
        outputs : {"all", "output_gradient"}
            What the calls compute.
        backend : {"auto", "onednn", "native"}
            As in a direct call.
        autotune : bool
            As in `BatchNormTrainingBackward.compile`.

        Returns
        -------
        CompiledBatchNormalizationGrad
            To be called with the arrays of a direct call, in the same order, and ``out``.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        UnsupportedError
            As a direct call does.
        """
        return CompiledBatchNormalizationGrad(
            self,
            spec,
            stats_dtype=_validation.spec(spec).dtype,
            stats_shape=stats_shape,
            gives={},
            all_outputs=_validation.outputs(outputs, SCHEMA),
            backend=backend,
            autotune=autotune,
        )
