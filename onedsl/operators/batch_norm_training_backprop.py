"""The oneDNN Graph specification's BatchNormTrainingBackprop-1."""

# No annotations from __future__ here: pdoc would not find the types of the result's fields.

from typing import Any, Literal, NamedTuple

from .. import _core
from ..tensors.arrays import AnyArray
from ..tensors.dtypes import Backend, DType
from ..tensors.spec import DataFormat, DataFormatLike, TensorSpec
from . import _validation
from ._compiled import Compiled
from ._operator import ChannelOperator
from ._schema import OpSchema
from ._sums import BatchNormSums

Out = tuple[AnyArray, AnyArray | None, AnyArray | None]


class BatchNormDeltas(NamedTuple):
    """The outputs of `BatchNormTrainingBackprop`. Those that were not requested are None.

    Attributes
    ----------
    input_delta : array
        Gradient with respect to input_forward, with its shape, dtype and memory layout.
    gamma_delta, beta_delta : array or None
        Gradients with respect to gamma and beta: shape (C,), mean's dtype.
    """

    input_delta: Any
    gamma_delta: Any = None
    beta_delta: Any = None


SCHEMA = OpSchema.of(
    _core.Operation.training_backward,
    BatchNormDeltas,
    names={
        "src": "input_forward",
        "diff_dst": "output_delta",
        "diff_src": "input_delta",
        "diff_gamma": "gamma_delta",
        "diff_beta": "beta_delta",
    },
)


class CompiledBatchNormTrainingBackprop(Compiled[BatchNormDeltas]):
    """A compiled `BatchNormTrainingBackprop`."""

    __slots__ = ()

    _schema = SCHEMA

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

        $compiled_call
        """
        return self._call((input_forward, output_delta, mean, variance, gamma), out)


class BatchNormTrainingBackprop(ChannelOperator[BatchNormDeltas]):
    """The gradient of batch normalization with the names of the oneDNN Graph specification.

    Parameters
    ----------
    epsilon : float
        Added to the variance under the square root. Positive and finite.
    data_format : {"NXC", "NCX"} or DataFormat, default "NXC"
        Position of the channel axis in the shape of input_forward: last or second.

    Notes
    -----
    The specification's op is BatchNormTrainingBackprop-1 [1]_. Formulas and accuracy are those of
    `BatchNormTrainingBackward`: input_forward is its src, output_delta its diff_dst, input_delta
    its diff_src, and gamma_delta and beta_delta are its diff_gamma and diff_beta. One behavior
    differs: gamma is also used if input_delta is the only output.

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
            Input of the forward pass.
            $array
        output_delta : array, input_forward's shape and dtype
            Gradient of the loss with respect to the output of the forward pass.
        mean, variance : array, (C,), f32, or bf16 where input_forward is bf16
            Statistics of input_forward. The variance is the biased one.
        gamma : array, (C,), dtype of mean, optional
            Scale of the forward pass. Default: ones.
        outputs : {"all", "input_delta"}
            What to compute.
        $call
        """
        inputs = (input_forward, output_delta, mean, variance, gamma)
        return self._call(inputs, _validation.parse_outputs(outputs, SCHEMA), out, backend)

    def reduce(
        self, input_forward: AnyArray, output_delta: AnyArray, mean: AnyArray, variance: AnyArray
    ) -> BatchNormSums:
        """Compute the sums of a part of the batch: the first of the two passes of a call.

        $reduce
        """
        return self._reduce((input_forward, output_delta, mean, variance))  # type: ignore[no-any-return]

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
        """Compute the gradients of a part of the batch: the second of the two passes of a call.

        $apply
        """
        inputs = (input_forward, output_delta, mean, variance, gamma)
        return self._apply(sums, inputs, _validation.parse_outputs(outputs, SCHEMA), out)

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
        """Compile for one shape, dtype and memory layout.

        Parameters
        ----------
        $spec
        gamma : bool
            Whether calls pass gamma.
        outputs : {"all", "input_delta"}
            What calls compute.
        $compile
        """
        return CompiledBatchNormTrainingBackprop(
            self,
            spec,
            stats_dtype=stats_dtype,
            given={"gamma": gamma},
            all_outputs=_validation.parse_outputs(outputs, SCHEMA),
            backend=backend,
            autotune=autotune,
        )
