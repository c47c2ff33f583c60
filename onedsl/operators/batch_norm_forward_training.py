"""oneDNN's Graph API op BatchNormForwardTraining."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, NamedTuple

from .. import _core
from ..tensors.arrays import AnyArray
from ..tensors.dtypes import MAX_RANK, STATISTICS, Backend, DType
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from . import _attributes
from ._compiled import Compiled
from ._operator import ChannelOperator
from ._schema import OpSchema, Port
from ._sums import BatchNormMoments

Out = tuple[AnyArray, AnyArray, AnyArray, AnyArray, AnyArray]


class BatchNormForward(NamedTuple):
    """The outputs of the op.

    Attributes
    ----------
    dst : array
        What the layer gives: src's shape, dtype and order in memory.
    running_mean, running_variance : array
        The new running statistics: shape (C,), the statistics' dtype.
    batch_mean, batch_variance : array
        Those of src, the variance being the biased one: what `BatchNormTrainingBackward` takes as
        mean and variance.
    """

    dst: Any
    running_mean: Any
    running_variance: Any
    batch_mean: Any
    batch_variance: Any


SCHEMA = OpSchema(
    _core.Operation.forward_training,
    inputs=(
        Port("src", "tensor"),
        Port("mean", "statistic"),
        Port("variance", "statistic"),
        Port("gamma", "statistic", optional=True),
        Port("beta", "statistic", optional=True),
    ),
    outputs=(
        Port("dst", "tensor", over="src"),
        Port("running_mean", "statistic"),
        Port("running_variance", "statistic"),
        Port("batch_mean", "statistic"),
        Port("batch_variance", "statistic"),
    ),
    result=BatchNormForward,
    statistics=_core.Statistics.batch,
    types=STATISTICS,
    ranks=(2, MAX_RANK),
    together=("gamma", "beta"),
)


class CompiledBatchNormForwardTraining(Compiled[BatchNormForward]):
    """What `BatchNormForwardTraining.compile` makes."""

    __slots__ = ()

    def __call__(
        self,
        src: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        *,
        out: Out | None = None,
    ) -> BatchNormForward:
        """Normalize.

        Parameters
        ----------
        src : array
            Of the spec's shape, dtype and strides.
        mean, variance : array
            The running statistics, of ``stats_shape`` and ``stats_dtype``.
        gamma, beta : array, optional
            Like mean. To be given if and only if this was compiled with ``gamma=True``.
        out : BatchNormForward or tuple of five arrays, optional
            As in a direct call.

        Returns
        -------
        BatchNormForward
            ``out`` if it was given.

        Raises
        ------
        TypeError, ValueError
            As a direct call does, and if an argument is not what this was compiled for. Nothing
            has been written then.

        Notes
        -----
        src is never copied. Statistics that are not contiguous are.
        """
        return self._call((src, mean, variance, gamma, beta), out)


class BatchNormForwardTraining(ChannelOperator[BatchNormForward]):
    """Batch normalization in training: oneDNN's Graph API op of the same name.

    Parameters
    ----------
    epsilon : float
        Added to the variance, inside the root. Positive and finite.
    momentum : float, optional
        Share of the old running statistics in the new ones, from 0 to 1. Absent means 0.5: what
        oneDNN takes then, which its document does not say.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Where the channels are in the shape of src. It says nothing about memory: a tensor that is
        dense in either order is used where it lies.

    Notes
    -----
    With M elements a channel, for each channel [1]_:

    - batch_mean = sum(src) / M
    - batch_variance = sum((src - batch_mean)^2) / M
    - dst = gamma * (src - batch_mean) / sqrt(batch_variance + epsilon) + beta
    - running_mean = momentum * mean + (1 - momentum) * batch_mean
    - running_variance = momentum * variance + (1 - momentum) * batch_variance

    PyTorch's layers count otherwise in two ways: their momentum is one minus this one, and their
    running variance is the unbiased one. Theirs is
    ``(1 - m) * variance + m * batch_variance * M / (M - 1)`` with PyTorch's momentum m.

    Of an empty src the batch's statistics are zeros, and the running ones stay as they are.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operation BatchNormForwardTraining.

    Examples
    --------
    >>> op = onedsl.BatchNormForwardTraining(epsilon=1e-5, momentum=0.9, data_format="NCX")
    >>> src = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> forward = op(src, np.float32([0]), np.float32([1]))
    >>> forward.batch_mean, forward.batch_variance
    (array([2.5], dtype=float32), array([1.25], dtype=float32))
    >>> forward.running_mean
    array([0.25], dtype=float32)
    """

    __slots__ = ("_momentum",)

    _schema = SCHEMA

    def __init__(
        self,
        epsilon: float,
        momentum: float | None = None,
        data_format: DataFormatLike = DataFormat.NXC,
    ) -> None:
        self._momentum = _attributes.momentum(momentum)
        numbers = {} if self._momentum is None else {"momentum": self._momentum}
        super().__init__(epsilon, data_format, numbers)

    @property
    def momentum(self) -> float | None:
        """Share of the old running statistics in the new ones; None is oneDNN's 0.5."""
        return self._momentum

    def _attributes(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "momentum": self._momentum,
            "data_format": self.data_format.value,
        }

    def __call__(
        self,
        src: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        *,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormForward:
        """Normalize, and renew the running statistics.

        Parameters
        ----------
        src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
            Input of the layer. NumPy's, or any other array on the CPU with ``__dlpack__``; the
            results are of its kind.
        mean, variance : array, (C,), f32, or bf16 where src is bf16
            The running statistics so far.
        gamma, beta : array, (C,), dtype of mean, optional
            Scale and shift, both or neither. Absent means ones and zeros.
        out : BatchNormForward or tuple of five arrays, optional
            Where to write. ``out.dst`` may be src itself; no other overlap.
        backend : {"auto", "onednn", "native"}
            What computes: onedsl's own kernels (``"auto"`` and ``"native"``), or the op of oneDNN's
            Graph API (``"onednn"``). The former run every type on every CPU.

        Returns
        -------
        BatchNormForward
            ``out`` if it was given. dst lies in memory as src does.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above. Nothing has been written then.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run these types on this CPU.

        Notes
        -----
        Memory is used where it lies if src is dense in any order of its axes. Anything else
        (slices, negative or zero strides, unaligned items) is copied first; the logger ``onedsl``
        tells so at level INFO.
        """
        return self._call((src, mean, variance, gamma, beta), True, out, backend)

    def reduce(self, src: AnyArray) -> BatchNormMoments:
        """Make the moments of a part of the batch: the first of a call's two passes.

        Parameters
        ----------
        src : array
            As in a direct call; a part of the batch, of any size, empty as well.

        Returns
        -------
        BatchNormMoments
            To be added to those of the other parts, and given to `apply`.

        Raises
        ------
        TypeError, ValueError
            As a direct call does.
        """
        return self._reduce(BatchNormMoments, (src,))

    def apply(
        self,
        moments: BatchNormMoments,
        src: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        *,
        out: Out | None = None,
    ) -> BatchNormForward:
        """Normalize a part of the batch: the second of a call's two passes.

        Parameters
        ----------
        moments : BatchNormMoments
            Those of all parts, added up.
        src, mean, variance, gamma, beta, out
            As in a direct call; src is a part of the batch, mean and variance are the running ones.

        Returns
        -------
        BatchNormForward
            ``out`` if it was given. dst is the part's; the statistics are those of the whole batch,
            batch's, and the same of every part.

        Raises
        ------
        TypeError, ValueError
            As a direct call does, and if the moments are not such. Nothing has been written then.
        """
        inputs = (src, mean, variance, gamma, beta)
        return self._apply(BatchNormMoments, moments, inputs, True, out)

    def compile(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> CompiledBatchNormForwardTraining:
        """Make the plan for one kind of input now, to be called many times.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of src, and so of dst.
        stats_dtype : str or dtype
            Of the statistics, gamma and beta.
        gamma : bool
            Whether the calls will pass gamma and beta.
        backend : {"auto", "onednn", "native"}
            As in a direct call.
        autotune : bool
            As in `BatchNormTrainingBackward.compile`.

        Returns
        -------
        CompiledBatchNormForwardTraining
            To be called with the arrays of a direct call, in the same order, and ``out``.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run these types on this CPU.
        """
        return CompiledBatchNormForwardTraining(
            self,
            spec,
            stats_dtype=stats_dtype,
            gives={"gamma": gamma, "beta": gamma},
            all_outputs=True,
            backend=backend,
            autotune=autotune,
        )
