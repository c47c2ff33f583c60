"""The oneDNN Graph specification's BatchNormTrainingBackprop-1."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, Literal, NamedTuple

from .. import _core
from ..tensors.arrays import AnyArray
from ..tensors.dtypes import MAX_RANK, STATISTICS, Backend, DType
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from . import _validation
from ._compiled import Compiled
from ._operator import ChannelOperator
from ._schema import OpSchema, Port
from ._sums import BatchNormSums

Out = tuple[AnyArray, AnyArray | None, AnyArray | None]


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


SCHEMA = OpSchema(
    _core.Operation.training_backward,
    inputs=(
        Port("input_forward", "tensor"),
        Port("output_delta", "tensor"),
        Port("mean", "statistic"),
        Port("variance", "statistic"),
        Port("gamma", "statistic", optional=True),
    ),
    outputs=(
        Port("input_delta", "tensor", over="output_delta"),
        Port("gamma_delta", "statistic"),
        Port("beta_delta", "statistic"),
    ),
    result=BatchNormDeltas,
    statistics=_core.Statistics.batch,
    types=STATISTICS,
    ranks=(2, MAX_RANK),
    always=("input_delta",),
    ask=('outputs="all"', 'outputs="input_delta"'),
)


class CompiledBatchNormTrainingBackprop(Compiled[BatchNormDeltas]):
    """What `BatchNormTrainingBackprop.compile` makes."""

    __slots__ = ()

    def __call__(
        self,
        input_forward: AnyArray,
        output_delta: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        *,
        out: Out | None = None,
    ) -> BatchNormDeltas:
        """Compute the gradients.

        Parameters
        ----------
        input_forward, output_delta : array
            Of the spec's shape, dtype and strides.
        mean, variance : array
            Of ``stats_shape`` and ``stats_dtype``.
        gamma : array, optional
            Like mean. To be given if and only if this was compiled with ``gamma=True``.
        out : BatchNormDeltas or tuple of three arrays, optional
            As in a direct call.

        Returns
        -------
        BatchNormDeltas
            ``out`` if it was given.

        Raises
        ------
        TypeError, ValueError
            As a direct call does, and if an argument is not what this was compiled for. Nothing
            has been written then.

        Notes
        -----
        input_forward and output_delta are never copied. Statistics that are not contiguous are.
        """
        return self._call((input_forward, output_delta, mean, variance, gamma), out)


class BatchNormTrainingBackprop(ChannelOperator[BatchNormDeltas]):
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

    The range of numbers for which results are right is that of `BatchNormTrainingBackward`.

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

    _schema = SCHEMA

    def __init__(self, epsilon: float, data_format: DataFormatLike = DataFormat.NXC) -> None:
        super().__init__(epsilon, data_format)

    def __call__(
        self,
        input_forward: AnyArray,
        output_delta: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
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
            What computes: onedsl's own kernels (``"auto"`` and ``"native"``), or the op of oneDNN's
            Graph API (``"onednn"``). The former run every type on every CPU.

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
        inputs = (input_forward, output_delta, mean, variance, gamma)
        return self._call(inputs, _validation.outputs(outputs, SCHEMA), out, backend)

    def reduce(
        self, input_forward: AnyArray, output_delta: AnyArray, mean: AnyArray, variance: AnyArray
    ) -> BatchNormSums:
        """Make the sums of a part of the batch: the first of a call's two passes.

        Parameters
        ----------
        input_forward, output_delta : array
            As in a direct call; a part of the batch, of any size, empty as well.
        mean, variance : array
            As in a direct call: those of the whole batch.

        Returns
        -------
        BatchNormSums
            To be added to those of the other parts, and given to `apply`.

        Raises
        ------
        TypeError, ValueError
            As a direct call does.
        """
        return self._reduce(BatchNormSums, (input_forward, output_delta, mean, variance))

    def apply(
        self,
        sums: BatchNormSums,
        input_forward: AnyArray,
        output_delta: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        *,
        outputs: Literal["all", "input_delta"] = "all",
        out: Out | None = None,
    ) -> BatchNormDeltas:
        """Compute the gradients of a part of the batch: the second of a call's two passes.

        Parameters
        ----------
        sums : BatchNormSums
            Those of all parts, added up.
        input_forward, output_delta, mean, variance, gamma, outputs, out
            As in a direct call; input_forward and output_delta are a part of the batch.

        Returns
        -------
        BatchNormDeltas
            ``out`` if it was given. input_delta is the part's; the others are the whole
            batch's, and the same of every part.

        Raises
        ------
        TypeError, ValueError
            As a direct call does, and if the sums are not such. Nothing has been written then.
        """
        return self._apply(
            BatchNormSums,
            sums,
            (input_forward, output_delta, mean, variance, gamma),
            _validation.outputs(outputs, SCHEMA),
            out,
        )

    def compile(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        outputs: Literal["all", "input_delta"] = "all",
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> CompiledBatchNormTrainingBackprop:
        """Make the plan for one kind of input now, to be called many times.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of input_forward, and so of the two gradients of its shape.
        stats_dtype : str or dtype
            Of mean, variance, gamma and their gradients.
        gamma : bool
            Whether the calls will pass gamma.
        outputs : {"all", "input_delta"}
            What the calls compute.
        backend : {"auto", "onednn", "native"}
            As in a direct call.
        autotune : bool
            Time both backends here and now, and keep the faster, where ``backend`` is ``"auto"``.
            Takes some ten calls of each, and memory for three tensors meanwhile. It goes by time
            alone: over many elements a channel, oneDNN's f32 sums are the less accurate ones.

        Returns
        -------
        CompiledBatchNormTrainingBackprop
            To be called with the arrays of a direct call, in the same order, and ``out``.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run these types on this CPU.
        """
        return CompiledBatchNormTrainingBackprop(
            self,
            spec,
            stats_dtype=stats_dtype,
            gives={"gamma": gamma},
            all_outputs=_validation.outputs(outputs, SCHEMA),
            backend=backend,
            autotune=autotune,
        )
