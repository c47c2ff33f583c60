"""Operator schemas, and the validation that depends on schemas only."""

from __future__ import annotations

import numpy as np
import pytest

from onedsl import (
    BatchNormalizationGrad,
    BatchNormForwardTraining,
    BatchNormReLUForwardTraining,
    BatchNormReLUTrainingBackward,
    BatchNormTrainingBackprop,
    BatchNormTrainingBackward,
    TensorSpec,
    _core,
)
from onedsl.operators import _validation
from onedsl.operators._dense import dense_inputs
from onedsl.operators._schema import OpSchema, Port
from onedsl.operators._validation import ArrayInfo

LAST = _core.StatisticsShape.channel_last
BROADCAST = _core.StatisticsShape.broadcast
ONEDNN = [
    BatchNormTrainingBackward,
    BatchNormForwardTraining,
    BatchNormReLUForwardTraining,
    BatchNormReLUTrainingBackward,
]
CLASSES = [*ONEDNN, BatchNormTrainingBackprop, BatchNormalizationGrad]


class TestSchemas:
    @pytest.mark.parametrize("cls", CLASSES)
    def test_names(self, cls):
        schema = cls._schema
        inputs = [port.name for port in schema.inputs]
        outputs = [port.name for port in schema.outputs]
        assert len({*inputs, *outputs}) == len(inputs) + len(outputs)
        assert list(schema.result._fields) == outputs
        assert schema.inputs[0].kind == "tensor"
        assert schema.ignored in ("", *inputs)
        if cls in ONEDNN:
            signature = _core.signature(schema.operation)
            assert inputs == [name for name, *_ in signature["inputs"]]
            assert outputs == [name for name, *_ in signature["outputs"]]

    def test_ports_of_the_core(self):
        """The optional, in-place, required and all-or-none ports, with the names of each class."""
        gradient, forward, relu, relu_gradient, backprop, frozen = (c._schema for c in CLASSES)
        optional = [[p.name for p in s.inputs if p.optional] for s in (gradient, backprop, frozen)]
        assert optional == [["gamma"], ["gamma"], []]
        in_place = [s.outputs[0].in_place for s in (gradient, forward, relu, backprop, frozen)]
        assert in_place == ["diff_dst", "src", "src", "output_delta", "input_gradient"]
        assert frozen.required == ("output_gradient",)
        assert frozen.on_request == ("output_scale_gradient", "output_bias_gradient")
        assert relu_gradient.on_request == ("diff_residual",)
        assert forward.on_request == ()
        assert forward.all_or_none == relu.all_or_none == ("gamma", "beta")
        assert [p.name for p in frozen.reduction.inputs] == [p.name for p in frozen.inputs[:4]]
        assert [p.name for p in forward.reduction.inputs] == ["src"]


# Other ports than the operators have: several optional inputs, and no optional output.
FORWARD = OpSchema(
    _core.Operation.training_backward,
    tuple,
    inputs=(
        Port("src", "tensor"),
        Port("mean", "statistic"),
        Port("variance", "statistic"),
        Port("gamma", "statistic", optional=True),
        Port("beta", "statistic", optional=True, document="Shift"),
    ),
    outputs=(
        Port("dst", "tensor", in_place="src"),
        Port("running_mean", "statistic"),
        Port("running_variance", "statistic"),
    ),
    all_or_none=(),
    reduce_inputs=1,
    types={"f32": ("f32",)},
    ranks=(2, 4),
)


def arrays():
    return [np.ones((4, 6), np.float32)[:, :3], *(np.ones(6, np.float32)[::2] for _ in range(4))]


class TestValidation:
    """Validation with a schema that no operator has."""

    @pytest.mark.parametrize("absent", [(), (3,), (4,), (3, 4)], ids=str)
    def test_valid_inputs(self, absent):
        inputs = [None if i in absent else a for i, a in enumerate(arrays())]
        _validation.check_inputs(FORWARD, LAST, inputs)
        dense = dense_inputs(FORWARD, LAST, inputs)
        assert [a is None for a in dense] == [i in absent for i in range(5)]
        assert all(a is None or a.flags.c_contiguous for a in dense)

    @pytest.mark.parametrize(
        ("position", "bad", "error", "message"),
        [
            (0, np.ones(3, np.float32), ValueError, "src must have at least 2 dimensions, got 1"),
            (0, np.ones((1,) * 5, np.float32), ValueError, "src must have at most 4 dimensions"),
            (0, np.ones((4, 3), np.float16), TypeError, "src must be f32, got f16"),
            (1, np.ones(4, np.float32), ValueError, r"mean must have shape \(3,\)"),
            (1, None, TypeError, "mean must be a NumPy array"),
            (2, np.ones(4, np.float32), ValueError, r"variance must have shape \(3,\)"),
            (3, np.ones(3, np.float16), TypeError, "gamma must be f32 like mean, got f16"),
            (4, np.ones(4, np.float32), ValueError, r"beta \(Shift\) must have shape \(3,\)"),
        ],
    )
    def test_invalid_inputs(self, position, bad, error, message):
        inputs = [*arrays()[:position], bad, *arrays()[position + 1 :]]
        with pytest.raises(error, match=message):
            _validation.check_inputs(FORWARD, LAST, inputs)

    def test_out_without_optional_members(self):
        x, s = np.ones((4, 3), np.float32), np.ones(3, np.float32)
        assert _validation.parse_out(FORWARD, True, [x, s, s]) == (x, s, s)
        with pytest.raises(ValueError, match=r"out\.running_variance must be an array, got None"):
            _validation.parse_out(FORWARD, True, (x, s, None))
        with pytest.raises(
            TypeError, match=r"\(dst, running_mean, running_variance\), got ndarray"
        ):
            _validation.parse_out(FORWARD, True, x)

    def test_overlaps(self):
        src, *statistics = (np.ascontiguousarray(a) for a in arrays())
        inputs = [src, *statistics]
        fresh = [np.empty_like(statistics[0]) for _ in range(2)]
        _validation.check_out_memory(FORWARD, inputs, inputs, (src, *fresh))
        with pytest.raises(ValueError, match=r"out\.running_mean must not overlap mean$"):
            _validation.check_out_memory(FORWARD, inputs, inputs, (src, statistics[0], fresh[1]))
        over = np.empty_like(src)
        inside = [*inputs[:4], over.reshape(-1)[:3]]
        with pytest.raises(
            ValueError, match=r"out\.dst must not overlap beta. It may be src itself"
        ):
            _validation.check_out_memory(FORWARD, inside, inputs, (over, *fresh))

    def test_not_compiled_for(self):
        specs = TensorSpec((4, 3)), TensorSpec((3,))
        inputs = [np.ascontiguousarray(a) for a in arrays()]
        _validation.check_compiled_for(FORWARD, inputs, *specs, 0b11111)
        with pytest.raises(TypeError, match=r"beta \(Shift\) must not be given: .* beta=False"):
            _validation.check_compiled_for(FORWARD, inputs, *specs, 0b01111)
        without = [*inputs[:3], None, inputs[4]]
        with pytest.raises(TypeError, match=r"gamma must be given: .* with gamma=True"):
            _validation.check_compiled_for(FORWARD, without, *specs, 0b11111)


class TestArrayInfo:
    """Validation of shapes and dtypes without memory."""

    SRC = ArrayInfo((2**40, 2**30), "f32")
    STATISTIC = ArrayInfo((2**30,), "f32")

    def test_valid(self):
        schema = BatchNormTrainingBackward._schema
        inputs = [self.SRC, self.SRC, *[self.STATISTIC] * 3]
        _validation.check_inputs(schema, LAST, inputs)
        _validation.check_inputs(schema, LAST, [*inputs[:4], None])

    def test_invalid(self):
        schema = BatchNormTrainingBackward._schema
        inputs = [self.SRC, self.SRC, *[self.STATISTIC] * 3]
        short, bf16 = ArrayInfo((2**29,), "f32"), ArrayInfo((2**30,), "bf16")
        with pytest.raises(ValueError, match=r"variance must have shape \(1073741824,\)"):
            _validation.check_inputs(schema, LAST, [*inputs[:3], short, inputs[4]])
        with pytest.raises(TypeError, match="mean must be f32 where src is f32, got bf16"):
            _validation.check_inputs(schema, LAST, [*inputs[:2], bf16, bf16, None])
        frozen = [self.SRC, self.STATISTIC, *[self.SRC] * 3]
        with pytest.raises(ValueError, match=r"InputGradientTensor\) must have input"):
            _validation.check_inputs(BatchNormalizationGrad._schema, BROADCAST, frozen)
