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
from ._schema import OpSchema
from ._sums import BatchNormSums

Out = tuple[AnyArray, AnyArray | None, AnyArray | None]


class BatchNormalizationGradients(NamedTuple):
    """The outputs of `BatchNormalizationGrad`. Those that were not requested are None.

    Attributes
    ----------
    output_gradient : array
        OutputGradientTensor: gradient with respect to input, with its shape and memory layout.
    output_scale_gradient, output_bias_gradient : array or None
        OutputScaleGradientTensor and OutputBiasGradientTensor: mean's shape.
    """

    output_gradient: Any
    output_scale_gradient: Any = None
    output_bias_gradient: Any = None


SCHEMA = OpSchema.of(
    _core.Operation.training_backward,
    BatchNormalizationGradients,
    names={
        "src": "input",
        "diff_dst": "input_gradient",
        "gamma": "scale",
        "diff_src": "output_gradient",
        "diff_gamma": "output_scale_gradient",
        "diff_beta": "output_bias_gradient",
    },
    documents={
        "input": "InputTensor",
        "input_gradient": "InputGradientTensor",
        "mean": "MeanTensor",
        "variance": "VarianceTensor",
        "scale": "ScaleTensor",
        "output_gradient": "OutputGradientTensor",
        "output_scale_gradient": "OutputScaleGradientTensor",
        "output_bias_gradient": "OutputBiasGradientTensor",
    },
    required=("scale",),
    statistics=_core.Statistics.frozen,
    types={"f32": ("f32",), "f16": ("f16",)},
    ranks=(1, 8),
)


def _check_scale(scale: AnyArray) -> AnyArray:
    """Raise TypeError for None, which is valid in the core: there gamma is optional."""
    if scale is None:
        raise TypeError("scale (ScaleTensor) must be an array, got None")
    return scale


class CompiledBatchNormalizationGrad(Compiled[BatchNormalizationGradients]):
    """A compiled `BatchNormalizationGrad`."""

    __slots__ = ()

    _schema = SCHEMA

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

        $compiled_call
        """
        return self._call((input, input_gradient, mean, variance, scale), out)


class BatchNormalizationGrad(Operator[BatchNormalizationGradients]):
    """The gradient for frozen statistics, with the names of DirectML.

    Parameters
    ----------
    epsilon : float
        Epsilon of the struct: added to the variance under the square root. Positive and finite.

    Notes
    -----
    The fields of the struct DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC [1]_:

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

    mean and variance are constants, so no gradient flows through them. The sums are over the axes
    where mean's size is 1:

    - xhat = (input - mean) / sqrt(variance + epsilon)
    - output_bias_gradient = sum(input_gradient)
    - output_scale_gradient = sum(input_gradient * xhat)
    - output_gradient = scale / sqrt(variance + epsilon) * input_gradient

    All tensors have the same dtype, float32 or float16. Sums are computed in a wider type and
    rounded at the end. Results are accurate in the same range as in `BatchNormTrainingBackward`.

    oneDNN's Graph API has no op for frozen statistics. ``backend="onednn"`` runs oneDNN's batch
    normalization primitive, for statistics whose axes of size > 1 are adjacent in memory.

    input is copied if the order of these axes in memory differs from that in the shape.

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
            Input of the forward pass.
            $array
        input_gradient : array, input's shape and dtype
            Gradient of the loss with respect to the output of the forward pass.
        mean, variance, scale : array, input's rank and dtype
            All three have the same shape, each size being input's or 1. variance is the biased
            variance.
        outputs : {"all", "output_gradient"}
            What to compute.
        $call
        """
        inputs = (input, input_gradient, mean, variance, _check_scale(scale))
        return self._call(inputs, _validation.parse_outputs(outputs, SCHEMA), out, backend)

    def reduce(
        self,
        input: AnyArray,  # noqa: A002 - the field is InputTensor
        input_gradient: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
    ) -> BatchNormSums:
        """Compute the sums of a part of the batch: the first of the two passes of a call.

        $reduce

        Notes
        -----
        output_gradient does not depend on the sums, because the statistics are frozen. The other
        two gradients are the sums over all parts, rounded once.
        """
        return self._reduce((input, input_gradient, mean, variance))  # type: ignore[no-any-return]

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
        """Compute the gradients of a part of the batch: the second of the two passes of a call.

        $apply
        """
        inputs = (input, input_gradient, mean, variance, _check_scale(scale))
        return self._apply(sums, inputs, _validation.parse_outputs(outputs, SCHEMA), out)

    def compile(
        self,
        spec: TensorSpec,
        stats_shape: Sequence[int],
        *,
        outputs: Literal["all", "output_gradient"] = "all",
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> CompiledBatchNormalizationGrad:
        """Compile for one shape, dtype and memory layout.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of input.
        stats_shape : sequence of int
            Shape of mean, variance and scale: input's rank, each size input's or 1.
        outputs : {"all", "output_gradient"}
            What calls compute.
        $compile
        """
        return CompiledBatchNormalizationGrad(
            self,
            spec,
            stats_dtype=_validation.check_spec(spec).dtype,
            stats_shape=stats_shape,
            all_outputs=_validation.parse_outputs(outputs, SCHEMA),
            backend=backend,
            autotune=autotune,
        )
