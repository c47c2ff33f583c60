"""The gradient of BatchNormForwardTraining fused with an addition and a ReLU."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, Generic, Literal, overload

from .._compat import NamedTuple, default_arguments
from ..graph import Graph
from ..runtime.errors import UnsupportedError
from ..tensors.arrays import AnyArray, ResidualArray, SrcArray
from ..tensors.dtypes import DType
from ..tensors.options import Backend
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from . import validation
from ._graph_of import OpRow, activation, batch_norm
from .base import ChannelOperator
from .schema import OpSchema

Out = tuple[AnyArray, AnyArray, AnyArray, AnyArray | None]


@default_arguments
class BatchNormReLUGradients(NamedTuple, Generic[SrcArray, ResidualArray]):
    """The outputs of `BatchNormReLUTrainingBackward`."""

    diff_src: SrcArray
    """Gradient with respect to src: an array with its type, shape, dtype and order of axes."""
    diff_gamma: Any
    """Gradient with respect to gamma: shape (C,), mean's dtype."""
    diff_beta: Any
    """Gradient with respect to beta: shape (C,), mean's dtype."""
    diff_residual: ResidualArray = None  # type: ignore[assignment]
    """Gradient with respect to the residual, like diff_src, or None if it was not requested."""


SCHEMA = OpSchema.of(
    "relu_training_backward",
    BatchNormReLUGradients,
    options=("residual=True", "residual=False"),
)


class BatchNormReLUTrainingBackward(ChannelOperator[BatchNormReLUGradients]):
    """The gradient of `BatchNormReLUForwardTraining`.

    Parameters
    ----------
    epsilon, data_format
        As in `BatchNormTrainingBackward`.
    clip
        As in `BatchNormReLUForwardTraining`.

    Notes
    -----
    Let d be 0 where ``dst <= 0 or dst >= clip``, as in PyTorch, and diff_dst elsewhere. diff_src,
    diff_gamma and diff_beta are those of `BatchNormTrainingBackward` for d, and diff_residual is d.

    dst is the output of the forward pass. If it is absent, it is recomputed from src, mean,
    variance, gamma and beta. The result is bitwise equal to that of `BatchNormReLUForwardTraining`
    with ``backend="auto"`` on the same instruction set, so dst need not be saved for the gradient.
    There are two exceptions: dst must be given if the forward pass had a residual, and if the
    statistics are bf16, because they are rounded after dst is computed.

    Arrays and errors are as in `BatchNormTrainingBackward`.

    oneDNN documents a fused partition of ReLUBackward and BatchNormTrainingBackward [1]_, but its
    pattern connects the ReLU's gradient to the port src instead of diff_dst. Therefore
    ``backend="onednn"`` runs two partitions, and needs dst.

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

    __slots__ = ()

    def _ops(self, absent: set[str]) -> list[OpRow]:
        if "dst" in absent:
            reason = "dst must be given: oneDNN's ReLUBackward needs it"
            raise UnsupportedError(reason, "unimplemented")
        masked = "masked" if "diff_residual" in absent else "diff_residual"
        kind, bounds = activation(self)
        mask: OpRow = f"{kind}Backward", bounds | {"use_dst": True}, ("dst", "diff_dst"), (masked,)
        return [mask, batch_norm(self, "training_backward", diff_dst=masked)]

    @property
    def _activation(self) -> tuple[str, float | None]:
        return "relu", self.clip

    def __init__(
        self,
        epsilon: float,
        data_format: DataFormatLike = DataFormat.NXC,
        *,
        clip: float | None = None,
    ) -> None:
        super().__init__(SCHEMA, epsilon=epsilon, data_format=data_format, clip=clip)

    @property
    def clip(self) -> float | None:
        """Upper bound of the ReLU, or None."""
        return self._attributes["clip"]  # type: ignore[no-any-return]

    @overload
    def __call__(
        self,
        src: SrcArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        dst: AnyArray | None = None,
        *,
        residual: Literal[False] = False,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormReLUGradients[SrcArray, None]: ...
    @overload
    def __call__(
        self,
        src: SrcArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        dst: AnyArray | None = None,
        *,
        residual: Literal[True],
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormReLUGradients[SrcArray, SrcArray]: ...
    @overload
    def __call__(
        self,
        src: SrcArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        beta: AnyArray | None = None,
        dst: AnyArray | None = None,
        *,
        residual: bool,
        out: Out | None = None,
        backend: Backend = "auto",
    ) -> BatchNormReLUGradients[SrcArray, SrcArray | None]: ...
    def __call__(
        self,
        src: SrcArray,
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
    ) -> BatchNormReLUGradients[SrcArray, Any]:
        """Compute the gradients.

        Parameters
        ----------
        src, mean, variance, backend
            As in `BatchNormTrainingBackward`. The statistics are batch_mean and batch_variance.
        diff_dst : array, src's shape and dtype
            Gradient of the loss with respect to the output of the ReLU.
        gamma, beta : array, (C,), dtype of mean, optional
            Scale and shift of the forward pass, both or neither if dst is absent. Defaults: ones
            and zeros.
        dst : array, src's shape and dtype, optional
            Output of the ReLU. Required if the forward pass had a residual, and for ``"onednn"``.
        residual : bool
            Whether to compute diff_residual.
        out : tuple of four arrays, optional
            Writable arrays in the order of the results, with their shapes, dtypes and strides; None
            for a diff_residual that is not computed. diff_src may be diff_dst itself; any other
            overlap is an error.

        Returns
        -------
        BatchNormReLUGradients
            Its members are the arrays of ``out``, if given.
        """
        if validation.check_bool("residual", residual) and dst is None:
            raise TypeError(
                "dst must be given with residual=True: the mask of the ReLU does not follow from "
                "src"
            )
        if dst is None and (gamma is None) != (beta is None):
            raise TypeError(
                "gamma and beta must be given both or neither if dst is absent, because the mask "
                f"of the ReLU is computed from them, {'gamma' if gamma is None else 'beta'} is "
                "missing"
            )
        inputs = (src, diff_dst, mean, variance, gamma, beta, dst)
        return self._call(inputs, residual, out, backend)

    def graph(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        residual: bool = False,
    ) -> Graph:
        """Return oneDNN's graph of two ops, as `BatchNormTrainingBackward.graph` does.

        Parameters
        ----------
        spec, stats_dtype
            As in `BatchNormTrainingBackward.graph`.
        gamma, residual : bool
            Whether the graph has the input gamma, and the output diff_residual. dst is always an
            input, and beta never.
        """
        validation.check_bool("residual", residual)
        return self._graph(
            spec, stats_dtype, {"gamma": gamma, "beta": False, "dst": True}, residual
        )
