"""DirectML's DML_BATCH_NORMALIZATION_GRAD."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, Generic, Literal

from .._compat import NamedTuple
from ..tensors.arrays import AnyArray, SrcArray
from ..tensors.options import Backend
from .base import Operator
from .batch_norm_training_backward import Out
from .schema import OpSchema


class BatchNormalizationGradients(NamedTuple, Generic[SrcArray]):
    """The outputs of `BatchNormalizationGrad`. Those that were not requested are None."""

    output_gradient: SrcArray
    """Gradient with respect to input: an array with its type, shape, dtype and order of axes."""
    output_scale_gradient: Any = None
    """Gradient with respect to scale: mean's shape and dtype; or None."""
    output_bias_gradient: Any = None
    """Gradient with respect to the bias: mean's shape and dtype; or None."""


SCHEMA = OpSchema.of(
    "training_backward",
    BatchNormalizationGradients,
    names={
        "src": "input",
        "diff_dst": "input_gradient",
        "gamma": "scale",
        "diff_src": "output_gradient",
        "diff_gamma": "output_scale_gradient",
        "diff_beta": "output_bias_gradient",
    },
    required_inputs=("scale",),
    types={"f32": ("f32",), "f16": ("f16",)},
    ranks=(1, 8),
)


class BatchNormalizationGrad(Operator[BatchNormalizationGradients]):
    """The gradient for frozen statistics, with the names of DirectML.

    Parameters
    ----------
    epsilon : float
        Epsilon of the struct: added to the variance under the square root. Positive and finite in
        float32.

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

    All tensors have the same dtype, float32 or float16. Sums are computed in float64 and
    rounded at the end. Results are accurate in the same range as in `BatchNormTrainingBackward`.

    oneDNN's Graph API has no op for frozen statistics, so ``backend="onednn"`` raises
    UnsupportedError.

    Arrays and errors are as in `BatchNormTrainingBackward`. If the axes where mean's size is not 1
    are not adjacent in memory, or have another order there than in the shape, the tensors are
    copied, and output_gradient has the memory layout of the copies.

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

    def __init__(self, epsilon: float) -> None:
        super().__init__(SCHEMA, "frozen", epsilon=epsilon)

    def __call__(
        self,
        input: SrcArray,
        input_gradient: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        scale: AnyArray,
        *,
        outputs: Literal["all", "output_gradient"] = "all",
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormalizationGradients[SrcArray]:
        """Compute the gradients.

        Parameters
        ----------
        input : array, 1 to 8 dimensions, f32 or f16
            Input of the forward pass.
        input_gradient : array, input's shape and dtype
            Gradient of the loss with respect to the output of the forward pass.
        mean, variance, scale : array, input's rank and dtype
            All three have the same shape, each size being input's or 1. variance is the biased
            variance.
        outputs : {"all", "output_gradient"}
            What to compute.
        out : tuple of three arrays, optional
            Writable arrays in the order of the results, with their shapes and dtypes; None for what
            is not computed. output_gradient may be input_gradient itself; any other overlap is an
            error.
        backend : {"auto", "onednn"}
            onedsl's own kernels run. ``"onednn"`` is unsupported.

        Returns
        -------
        BatchNormalizationGradients
            Its members are the arrays of ``out``, if given.
        """
        inputs = (input, input_gradient, mean, variance, scale)
        return self._call(inputs, outputs, out, backend)
