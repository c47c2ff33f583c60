"""oneDNN's Graph API op BatchNormTrainingBackward."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, Generic, Literal

from .._compat import NamedTuple
from ..graph import Graph
from ..tensors.arrays import AnyArray, SrcArray
from ..tensors.dtypes import DType
from ..tensors.options import Backend
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from .base import ChannelOperator
from .schema import OpSchema
from .totals import BatchNormSums

Out = tuple[AnyArray, AnyArray | None, AnyArray | None]


class BatchNormGradients(NamedTuple, Generic[SrcArray]):
    """The outputs of `BatchNormTrainingBackward`. Those that were not requested are None."""

    diff_src: SrcArray
    """Gradient with respect to src: an array with its type, shape, dtype and order of axes."""
    diff_gamma: Any = None
    """Gradient with respect to gamma: shape (C,), mean's dtype; or None."""
    diff_beta: Any = None
    """Gradient with respect to beta: shape (C,), mean's dtype; or None."""


SCHEMA = OpSchema.of("training_backward", BatchNormGradients, ignored="gamma")


class BatchNormTrainingBackward(ChannelOperator[BatchNormGradients]):
    """The gradient of batch normalization: the op of this name in oneDNN's Graph API.

    onedsl's own kernels compute it by default, or oneDNN with ``backend="onednn"``.

    Parameters
    ----------
    epsilon : float
        Added to the variance under the square root. Positive and finite in float32.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Position of the channel axis in the shape of src: last or second. It does not restrict the
        memory layout.

    Notes
    -----
    With M elements per channel, for each channel [1]_:

    - xhat = (src - mean) / sqrt(variance + epsilon)
    - diff_beta = sum(diff_dst)
    - diff_gamma = sum(diff_dst * xhat)
    - diff_src = gamma / sqrt(variance + epsilon) *
      (diff_dst - diff_beta / M - xhat * diff_gamma / M)

    ``variance`` is the biased variance (divided by M), never an inverse standard deviation.

    An array is a NumPy array or any other CPU array with ``__dlpack__``. Results are arrays of
    src's library if it has ``from_dlpack``, as PyTorch and JAX have, and NumPy arrays otherwise.
    Tensors may have any strides, each its own, and so may those in ``out`` whose elements share no
    memory. The result has src's strides if src is dense, otherwise those of
    ``np.empty_like(src)``. Tensors with unaligned items and strided statistics are copied first,
    and so are all tensors that are not dense with src's strides for ``backend="onednn"``. The
    logger ``onedsl`` reports copies at level INFO.

    An invalid argument is a TypeError or ValueError, and no output has been written. A call that
    oneDNN cannot run (types that need another CPU, 2^31 elements) is an `UnsupportedError`.

    Products are computed in float32 and summed in float64. Results are accurate if diff_dst *
    (src - mean) and xhat * diff_gamma / M are below 1e36 in magnitude, and above 1e-30 where they
    contribute to the result. Ordinary data are far from both limits, also with a scaled loss.
    Beyond them, results may be inf or NaN, or lose digits.

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

    def __init__(self, epsilon: float, data_format: DataFormatLike = DataFormat.NXC) -> None:
        super().__init__(SCHEMA, epsilon=epsilon, data_format=data_format)

    def __call__(
        self,
        src: SrcArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        *,
        outputs: Literal["all", "diff_src"] = "all",
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormGradients[SrcArray]:
        """Compute the gradients.

        Parameters
        ----------
        src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
            Input of the forward pass.
        diff_dst : array, src's shape and dtype
            Gradient of the loss with respect to the output of the forward pass.
        mean, variance : array, (C,), f32, or bf16 where src is bf16
            Statistics of src. The variance is the biased one.
        gamma : array, (C,), dtype of mean, optional
            Scale of the forward pass. Default: ones.
        outputs : {"all", "diff_src"}
            What to compute. ``"diff_src"`` computes the gradient for gamma = 1, whatever is passed
            as gamma, as oneDNN defines the op.
        out : tuple of three arrays, optional
            Writable arrays in the order of the results, with their shapes and dtypes; None for what
            is not computed. diff_src may be diff_dst itself. Any other overlap is an error.
        backend : {"auto", "onednn"}
            onedsl's own kernels, or oneDNN.

        Returns
        -------
        BatchNormGradients
            Its members are the arrays of ``out``, if given.

        Warns
        -----
        GammaIgnoredWarning
            If gamma is given with ``outputs="diff_src"``.
        """
        inputs = (src, diff_dst, mean, variance, gamma)
        return self._call(inputs, outputs, out, backend)

    def reduce(
        self, src: AnyArray, diff_dst: AnyArray, mean: AnyArray, variance: AnyArray
    ) -> BatchNormSums:
        """Compute the sums of a part of the batch: the first of the two passes of a call.

        src and diff_dst are a part of any size, which may be empty. The statistics are those of the
        whole batch.

        Returns
        -------
        BatchNormSums
            Add those of all parts with ``+``, and pass the sum to `apply`.
        """
        return self._reduce((src, diff_dst, mean, variance))  # type: ignore[no-any-return]

    def apply(
        self,
        sums: BatchNormSums | Literal[0],
        src: SrcArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        *,
        outputs: Literal["all", "diff_src"] = "all",
        out: Out | None = None,
    ) -> BatchNormGradients[SrcArray]:
        """Compute the gradients of a part of the batch: the second of the two passes of a call.

        sums is the sum of the results of `reduce` for all parts, by an operator with this epsilon.
        (The type of Python's ``sum()`` includes 0, its result for no parts, which raises TypeError
        here.) The other arguments are those of a call, for this part.

        Returns
        -------
        BatchNormGradients
            diff_src of this part. diff_gamma and diff_beta are those of the whole batch.
        """
        inputs = (src, diff_dst, mean, variance, gamma)
        return self._apply(sums, inputs, outputs, out)

    def graph(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        outputs: Literal["all", "diff_src"] = "all",
    ) -> Graph:
        """Return oneDNN's graph of this op exactly as the arguments describe it.

        Nothing is added, reshaped or converted. `onedsl.graph` lists what oneDNN supports and
        computes. ``op.graph(...).repaired()`` is the graph that ``backend="onednn"`` runs.
        ``graph.to_json()`` is the format of benchdnn.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of src and of every other array of its shape.
        stats_dtype : str or dtype, default "f32"
            Dtype of mean and of every other array of its shape.
        gamma : bool
            Whether the graph has the input gamma.
        outputs : {"all", "diff_src"}
            The outputs of the graph.

        Returns
        -------
        onedsl.graph.Graph
        """
        return self._graph(spec, stats_dtype, {"gamma": gamma}, outputs)
