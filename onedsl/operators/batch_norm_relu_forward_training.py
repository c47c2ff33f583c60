"""BatchNormForwardTraining and the ReLU behind it, in one."""

from __future__ import annotations

from typing import Any

from .. import _core
from ..tensors.arrays import AnyArray
from ..tensors.dtypes import MAX_RANK, STATISTICS, Backend, DType
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from . import _attributes
from ._compiled import Compiled
from ._operator import ChannelOperator
from ._schema import OpSchema, Port
from .batch_norm_forward_training import SCHEMA as PLAIN
from .batch_norm_forward_training import BatchNormForward, Out

SCHEMA = OpSchema(
    _core.Operation.relu_forward_training,
    inputs=(*PLAIN.inputs, Port("residual", "tensor", optional=True)),
    outputs=PLAIN.outputs,
    result=BatchNormForward,
    statistics=_core.Statistics.batch,
    types=STATISTICS,
    ranks=(2, MAX_RANK),
    together=PLAIN.together,
)


class CompiledBatchNormReLUForwardTraining(Compiled[BatchNormForward]):
    """What `BatchNormReLUForwardTraining.compile` makes."""

    __slots__ = ()

    def __call__(
        self,
        src: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        residual: AnyArray | None = None,
        *,
        out: Out | None = None,
    ) -> BatchNormForward:
        """Normalize, add the residual, and cut off what is negative.

        Parameters
        ----------
        src : array
            Of the spec's shape, dtype and strides.
        mean, variance : array
            The running statistics, of ``stats_shape`` and ``stats_dtype``.
        gamma, beta : array, optional
            Like mean. To be given if and only if this was compiled with ``gamma=True``.
        residual : array, optional
            Like src. To be given if and only if this was compiled with ``residual=True``.
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
        src and residual are never copied. Statistics that are not contiguous are.
        """
        return self._call((src, mean, variance, gamma, beta, residual), out)


class BatchNormReLUForwardTraining(ChannelOperator[BatchNormForward]):
    """Batch normalization in training with its ReLU, and with the addition before that.

    Parameters
    ----------
    epsilon : float
        Added to the variance, inside the root. Positive and finite.
    momentum : float, optional
        As in `BatchNormForwardTraining`.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Where the channels are in the shape of src.
    clip : float, optional
        The ReLU's upper bound: 6.0 for ReLU6. Absent means none.

    Notes
    -----
    dst = min(max(batch_norm(src) + residual, 0), clip), where batch_norm and the other outputs are
    those of `BatchNormForwardTraining`. A NaN stays one. The sum, the ReLU and the bound are taken
    in f32, and rounded once.

    oneDNN has no such op: its graph of the three ops [1]_ [2]_ is what ``backend="onednn"`` runs,
    in as many partitions as oneDNN makes of it.

    References
    ----------
    .. [1] oneDNN developer guide, Graph API, operation BatchNormForwardTraining.
    .. [2] oneDNN developer guide, Graph API, operations Add, ReLU and Clamp.

    Examples
    --------
    >>> op = onedsl.BatchNormReLUForwardTraining(epsilon=1e-5, data_format="NCX")
    >>> src = np.float32([1, 2, 3, 4]).reshape(1, 1, 2, 2)
    >>> op(src, np.float32([0]), np.float32([1])).dst.round(2)
    array([[[[0.  , 0.  ],
             [0.45, 1.34]]]], dtype=float32)
    """

    __slots__ = ("_clip", "_momentum")

    _schema = SCHEMA

    def __init__(
        self,
        epsilon: float,
        momentum: float | None = None,
        data_format: DataFormatLike = DataFormat.NXC,
        *,
        clip: float | None = None,
    ) -> None:
        self._momentum = _attributes.momentum(momentum)
        self._clip = _attributes.clip(clip)
        numbers = {"momentum": self._momentum, "clip": self._clip}
        super().__init__(
            epsilon, data_format, {name: n for name, n in numbers.items() if n is not None}
        )

    @property
    def momentum(self) -> float | None:
        """Share of the old running statistics in the new ones; None is oneDNN's 0.5."""
        return self._momentum

    @property
    def clip(self) -> float | None:
        """The ReLU's upper bound; None if there is none."""
        return self._clip

    def _attributes(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "momentum": self._momentum,
            "data_format": self.data_format.value,
            "clip": self._clip,
        }

    def __call__(
        self,
        src: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        residual: AnyArray | None = None,
        *,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormForward:
        """Normalize, add the residual, and cut off what is negative.

        Parameters
        ----------
        src : array, (N, ..., C) or (N, C, ...), f32, bf16 or f16
            Input of the layer. NumPy's, or any other array on the CPU with ``__dlpack__``; the
            results are of its kind.
        mean, variance : array, (C,), f32, or bf16 where src is bf16
            The running statistics so far.
        gamma, beta : array, (C,), dtype of mean, optional
            Scale and shift, both or neither. Absent means ones and zeros.
        residual : array, src's shape and dtype, optional
            Added before the ReLU. Absent means zeros.
        out : BatchNormForward or tuple of five arrays, optional
            Where to write. ``out.dst`` may be src itself; no other overlap.
        backend : {"auto", "onednn", "native"}
            What computes: onedsl's own kernels (``"auto"`` and ``"native"``), or oneDNN's graph of
            the ops (``"onednn"``). The former run every type on every CPU.

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
        What is copied and what is not is as with `BatchNormForwardTraining`.
        """
        inputs = (src, mean, variance, gamma, beta, residual)
        return self._call(inputs, True, out, backend)

    def compile(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        residual: bool = False,
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> CompiledBatchNormReLUForwardTraining:
        """Make the plan for one kind of input now, to be called many times.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of src, and so of residual and dst.
        stats_dtype : str or dtype
            Of the statistics, gamma and beta.
        gamma : bool
            Whether the calls will pass gamma and beta.
        residual : bool
            Whether the calls will pass a residual.
        backend : {"auto", "onednn", "native"}
            As in a direct call.
        autotune : bool
            As in `BatchNormTrainingBackward.compile`.

        Returns
        -------
        CompiledBatchNormReLUForwardTraining
            To be called with the arrays of a direct call, in the same order, and ``out``.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run these types on this CPU.
        """
        return CompiledBatchNormReLUForwardTraining(
            self,
            spec,
            stats_dtype=stats_dtype,
            gives={"gamma": gamma, "beta": gamma, "residual": residual},
            all_outputs=True,
            backend=backend,
            autotune=autotune,
        )
