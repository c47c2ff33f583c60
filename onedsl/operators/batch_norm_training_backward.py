"""oneDNN's op BatchNormTrainingBackward."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Literal

from .. import _core
from ..graph import Graph
from ..tensors.arrays import AnyArray
from ..tensors.dtypes import MAX_RANK, STATISTICS, Backend, DType, dtype_name
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from . import _single_op_graph, _validation
from ._gradients import BatchNormGradients, CompiledBatchNormTrainingBackward, Out
from ._operator import ChannelOperator
from ._schema import OpSchema, Port
from ._sums import BatchNormSums

__all__ = [
    "SCHEMA",
    "BatchNormGradients",
    "BatchNormTrainingBackward",
    "CompiledBatchNormTrainingBackward",
]

SCHEMA = OpSchema(
    _core.Operation.training_backward,
    inputs=(
        Port("src", "tensor"),
        Port("diff_dst", "tensor"),
        Port("mean", "statistic"),
        Port("variance", "statistic"),
        Port("gamma", "statistic", optional=True),
    ),
    outputs=(
        Port("diff_src", "tensor", over="diff_dst"),
        Port("diff_gamma", "statistic"),
        Port("diff_beta", "statistic"),
    ),
    result=BatchNormGradients,
    statistics=_core.Statistics.batch,
    types=STATISTICS,
    ranks=(2, MAX_RANK),
    always=("diff_src",),
    ask=('outputs="all"', 'outputs="diff_src"'),
    ignored="gamma",
)


class BatchNormTrainingBackward(ChannelOperator[BatchNormGradients]):
    """The gradient of batch normalization: the op of this name in oneDNN's Graph API.

    onedsl's own kernels compute it, or oneDNN itself where ``backend="onednn"`` asks for that.

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
    - diff_src = gamma / sqrt(variance + epsilon) *
      (diff_dst - diff_beta / M - xhat * diff_gamma / M)

    ``variance`` is the biased one (divided by M), and never an inverse standard deviation.

    Sums are held in float64, what they are made of in float32. So results are right where the
    products diff_dst * (src - mean) and xhat * diff_gamma / M are below 1e36 in magnitude, and
    where none that matters is below 1e-30; beyond that they may be inf or NaN, or lose digits, even
    if they would fit.

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

    _schema = SCHEMA

    def __init__(self, epsilon: float, data_format: DataFormatLike = DataFormat.NXC) -> None:
        super().__init__(epsilon, data_format)

    def __call__(
        self,
        src: AnyArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
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
            What computes: onedsl's own kernels (``"auto"`` and ``"native"``), or the op of oneDNN's
            Graph API (``"onednn"``). The former run every type on every CPU.

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
        all_outputs = _validation.outputs(outputs, SCHEMA)
        return self._call((src, diff_dst, mean, variance, gamma), all_outputs, out, backend)

    def reduce(
        self, src: AnyArray, diff_dst: AnyArray, mean: AnyArray, variance: AnyArray
    ) -> BatchNormSums:
        """Make the sums of a part of the batch: the first of a call's two passes.

        Parameters
        ----------
        src, diff_dst : array
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
        return self._reduce(BatchNormSums, (src, diff_dst, mean, variance))

    def apply(
        self,
        sums: BatchNormSums,
        src: AnyArray,
        diff_dst: AnyArray,
        mean: AnyArray,
        variance: AnyArray,
        gamma: AnyArray | None = None,
        *,
        outputs: Literal["all", "diff_src"] = "all",
        out: Out | None = None,
    ) -> BatchNormGradients:
        """Compute the gradients of a part of the batch: the second of a call's two passes.

        Parameters
        ----------
        sums : BatchNormSums
            Those of all parts, added up.
        src, diff_dst, mean, variance, gamma, outputs, out
            As in a direct call; src and diff_dst are a part of the batch.

        Returns
        -------
        BatchNormGradients
            ``out`` if it was given. diff_src is the part's; the others are the whole
            batch's, and the same of every part.

        Raises
        ------
        TypeError, ValueError
            As a direct call does, and if the sums are not such. Nothing has been written then.

        Warns
        -----
        GammaIgnoredWarning
            If gamma is given with ``outputs="diff_src"``.
        """
        return self._apply(
            BatchNormSums,
            sums,
            (src, diff_dst, mean, variance, gamma),
            _validation.outputs(outputs, SCHEMA),
            out,
        )

    def compile(
        self,
        spec: TensorSpec,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        outputs: Literal["all", "diff_src"] = "all",
        backend: Backend = "auto",
        autotune: bool = False,
    ) -> CompiledBatchNormTrainingBackward:
        """Make the plan for one kind of input now, to be called many times.

        Parameters
        ----------
        spec : TensorSpec
            Shape, dtype and strides of src, and so of the two gradients of its shape.
        stats_dtype : str or dtype
            Of mean, variance, gamma and their gradients.
        gamma : bool
            Whether the calls will pass gamma. Without effect where it is ignored.
        outputs : {"all", "diff_src"}
            What the calls compute.
        backend : {"auto", "onednn", "native"}
            As in a direct call.
        autotune : bool
            Time both backends here and now, and keep the faster, where ``backend`` is ``"auto"``.
            Takes some ten calls of each, and memory for three tensors meanwhile. It goes by time
            alone: over many elements a channel, oneDNN's f32 sums are the less accurate ones.

        Returns
        -------
        CompiledBatchNormTrainingBackward
            To be called with the arrays of a direct call, in the same order, and ``out``.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        UnsupportedError
            If the backend is ``"onednn"`` and it cannot run these types on this CPU.
        """
        return CompiledBatchNormTrainingBackward(
            self,
            spec,
            stats_dtype=stats_dtype,
            gives={"gamma": gamma},
            all_outputs=_validation.outputs(outputs, SCHEMA),
            backend=backend,
            autotune=autotune,
        )

    def to_json(
        self,
        spec: TensorSpec | None = None,
        *,
        stats_dtype: DType = "f32",
        gamma: bool = True,
        outputs: Literal["all", "diff_src"] = "all",
    ) -> str:
        """Write a graph of this op, as oneDNN dumps it and its benchdnn reads it.

        Parameters
        ----------
        spec : TensorSpec, optional
            Of src. Without it, the sizes stand there as oneDNN's number for what is not known.
        stats_dtype, gamma, outputs
            As in `compile`.

        Returns
        -------
        str
            JSON.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as above.
        """
        all_outputs = _validation.outputs(outputs, SCHEMA)
        statistics = dtype_name(stats_dtype, "stats_dtype")
        if spec is not None:
            _validation.rank(SCHEMA, _validation.spec(spec).shape)
            _validation.types(SCHEMA, spec.dtype, statistics, "stats_dtype")
        inputs = [
            p.name for p in SCHEMA.inputs if p.name != "gamma" or _validation.given("gamma", gamma)
        ]
        names = [p.name for p in SCHEMA.outputs if all_outputs or p.name in SCHEMA.always]
        graph = _single_op_graph.graph_of(self._attributes(), spec, statistics, inputs, names)
        return graph.to_json()

    @classmethod
    def from_json(cls, text: str) -> "BatchNormTrainingBackward":
        """Read the op from a graph that oneDNN dumped, or `to_json` wrote.

        Parameters
        ----------
        text : str
            Contents of the file. `onedsl.graph.Graph.from_json` reads the tensors, too.

        Returns
        -------
        BatchNormTrainingBackward

        Raises
        ------
        ValueError
            If it is no such JSON, or not a graph of this one op. The message names the place.
        """
        found = _single_op_graph.described(Graph.from_json(text))
        return cls(found.epsilon, found.data_format)
