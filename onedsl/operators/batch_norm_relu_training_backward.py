"""The gradient of BatchNormForwardTraining and the ReLU behind it, in one."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, NamedTuple

from .. import _core
from ..tensors.arrays import AnyArray
from ..tensors.dtypes import MAX_RANK, STATISTICS, Backend, DType
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from . import _attributes, _validation
from ._compiled import Compiled
from ._operator import ChannelOperator
from ._schema import OpSchema, Port

Out = tuple[AnyArray, AnyArray, AnyArray, AnyArray | None]


class BatchNormReLUGradients(NamedTuple):
    """The gradients. What was not asked for is None.

    Attributes
    ----------
    diff_src : array
        Gradient with respect to src: src's shape, dtype and order in memory.
    diff_gamma, diff_beta : array
        Gradients with respect to gamma and beta: shape (C,), the statistics' dtype.
    diff_residual : array or None
        Gradient with respect to the residual: like diff_src.
    """

    diff_src: Any
    diff_gamma: Any
    diff_beta: Any
    diff_residual: Any = None


SCHEMA = OpSchema(
    _core.Operation.relu_training_backward,
    inputs=(
        Port("src", "tensor"),
        Port("diff_dst", "tensor"),
        Port("mean", "statistic"),
        Port("variance", "statistic"),
        Port("gamma", "statistic", optional=True),
        Port("beta", "statistic", optional=True),
        Port("dst", "tensor", optional=True),
    ),
    outputs=(
        Port("diff_src", "tensor", over="diff_dst"),
        Port("diff_gamma", "statistic"),
        Port("diff_beta", "statistic"),
        Port("diff_residual", "tensor"),
    ),
    result=BatchNormReLUGradients,
    statistics=_core.Statistics.batch,
    types=STATISTICS,
    ranks=(2, MAX_RANK),
    always=("diff_src", "diff_gamma", "diff_beta"),
    ask=("residual=True", "residual=False"),
)


def _check_mask(*, gamma: bool, beta: bool, dst: bool, residual: bool) -> None:
    """Check that the mask is known."""
    if _validation.given("residual", residual) and not dst:
        raise TypeError(
            "dst must be given with residual=True: src alone does not tell where the ReLU was open"
        )
    if not dst and gamma != beta:
        raise TypeError(
            "gamma and beta come both or neither where dst is absent: they tell where the ReLU was "
            f"open; {'beta' if gamma else 'gamma'} is missing"
        )


class CompiledBatchNormReLUTrainingBackward(Compiled[BatchNormReLUGradients]):
    """What `BatchNormReLUTrainingBackward.compile` makes."""

    __slots__ = ()

    def __call__(
        self,
        src: AnyArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        dst: AnyArray | None = None,
        *,
        out: Out | None = None,
    ) -> BatchNormReLUGradients:
        """Compute the gradients.

        Parameters
        ----------
        src, diff_dst : array
            Of the spec's shape, dtype and strides.
        mean, variance : array
            The batch's statistics, of ``stats_shape`` and ``stats_dtype``.
        gamma, beta : array, optional
            Like mean. To be given if and only if this was compiled with ``gamma=True``.
        dst : array, optional
            Like src. To be given if and only if this was compiled with ``dst=True``.
        out : BatchNormReLUGradients or tuple of four arrays, optional
            As in a direct call.

        Returns
        -------
        BatchNormReLUGradients
            ``out`` if it was given.

        Raises
        ------
        TypeError, ValueError
            As a direct call does, and if an argument is not what this was compiled for. Nothing
            has been written then.

        Notes
        -----
        Tensors are never copied. Statistics that are not contiguous are.
        """
        return self._call((src, diff_dst, mean, variance, gamma, beta, dst), out)


class BatchNormReLUTrainingBackward(ChannelOperator[BatchNormReLUGradients]):
    """The gradient of batch normalization with its ReLU, and with the addition before that.

    Parameters
    ----------
    epsilon : float
        Added to the variance, inside the root. Positive and finite.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Where the channels are in the shape of src.
    clip : float, optional
        The ReLU's upper bound: 6.0 for ReLU6. Absent means none.

    Notes
    -----
    With d = diff_dst where the ReLU was open and 0 elsewhere, the gradients are those of
    `BatchNormTrainingBackward` for d, and diff_residual is d.

    The ReLU was open where ``not (dst <= 0 or dst >= clip)``, as in PyTorch. dst is the layer's
    output. Where it is absent, it is computed again from src, mean, variance, gamma and beta, bit
    for bit as `BatchNormReLUForwardTraining` computes it with ``backend="auto"``: so nobody need
    keep it, and nothing more is read than the gradient itself reads. That holds for f32 statistics
    on one instruction set: bf16 ones are rounded after dst is computed, so give dst with those.

    oneDNN's Graph API promises a partition of ReLUBackward and BatchNormTrainingBackward [1]_, but
    its pattern has the ReLU's gradient at the port src instead of diff_dst. So ``backend="onednn"``
    runs the right graph, in two partitions, and needs dst.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operations ReLUBackward, ClampBackward and
       BatchNormTrainingBackward.

    Examples
    --------
    >>> op = onedsl.BatchNormReLUTrainingBackward(epsilon=1e-5, data_format="NCX")
    >>> src = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> grads = op(src, np.ones_like(src), np.float32([2.5]), np.float32([1.25]))
    >>> grads.diff_beta
    array([2.], dtype=float32)
    """

    __slots__ = ("_clip",)

    _schema = SCHEMA

    def __init__(
        self,
        epsilon: float,
        data_format: DataFormatLike = DataFormat.NXC,
        *,
        clip: float | None = None,
    ) -> None:
        self._clip = _attributes.clip(clip)
        super().__init__(epsilon, data_format, {} if self._clip is None else {"clip": self._clip})

    @property
    def clip(self) -> float | None:
        """The ReLU's upper bound; None if there is none."""
        return self._clip

    def _attributes(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "data_format": self.data_format.value,
            "clip": self._clip,
        }

    def __call__(
        self,
        src: AnyArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        dst: AnyArray | None = None,
        *,
        residual: bool = False,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormReLUGradients:
        """Compute the gradients.

        Parameters
        ----------
        src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
            Input of the forward pass. NumPy's, or any other array on the CPU with
            ``__dlpack__``; the results are of its kind.
        diff_dst : array, src's shape and dtype
            Gradient of the loss with respect to the output of the ReLU.
        mean, variance : array, (C,), f32, or bf16 where src is bf16
            The batch's, as the forward pass gave them; the variance is the biased one.
        gamma, beta : array, (C,), dtype of mean, optional
            Scale and shift of the forward pass, both or neither where dst is absent. Absent means
            ones and zeros.
        dst : array, src's shape and dtype, optional
            Output of the ReLU. To be given if there was a residual.
        residual : bool
            Whether diff_residual is wanted.
        out : BatchNormReLUGradients or tuple of four arrays, optional
            Where to write. ``out.diff_src`` may be diff_dst itself; no other overlap. Give None
            for diff_residual if it is not wanted.
        backend : {"auto", "onednn", "native"}
            What computes: onedsl's own kernels (``"auto"`` and ``"native"``), or oneDNN's graph of
            the two ops (``"onednn"``), which needs dst. The former run every type on every CPU.

        Returns
        -------
        BatchNormReLUGradients
            ``out`` if it was given. diff_src lies in memory as src does.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above. Nothing has been written then.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run this.

        Notes
        -----
        What is copied and what is not is as with `BatchNormTrainingBackward`.
        """
        _check_mask(
            gamma=gamma is not None,
            beta=beta is not None,
            dst=dst is not None,
            residual=residual,
        )
        inputs = (src, diff_dst, mean, variance, gamma, beta, dst)
        return self._call(inputs, residual, out, backend)

    def compile(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        dst: bool = False,
        residual: bool = False,
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> CompiledBatchNormReLUTrainingBackward:
        """Make the plan for one kind of input now, to be called many times.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of src, and so of all tensors.
        stats_dtype : str or dtype
            Of mean, variance, gamma, beta and the gradients of the latter two.
        gamma : bool
            Whether the calls will pass gamma and beta.
        dst : bool
            Whether the calls will pass dst.
        residual : bool
            Whether the calls compute diff_residual.
        backend : {"auto", "onednn", "native"}
            As in a direct call.
        autotune : bool
            As in `BatchNormTrainingBackward.compile`.

        Returns
        -------
        CompiledBatchNormReLUTrainingBackward
            To be called with the arrays of a direct call, in the same order, and ``out``.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run this.
        """
        _check_mask(gamma=gamma, beta=gamma, dst=dst, residual=residual)
        return CompiledBatchNormReLUTrainingBackward(
            self,
            spec,
            stats_dtype=stats_dtype,
            gives={"gamma": gamma, "beta": gamma, "dst": dst},
            all_outputs=residual,
            backend=backend,
            autotune=autotune,
        )
