"""Operator classes are lists of ports, and what they share goes by these lists alone."""

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
    _core,
)
from onedsl.operators import _dense, _validation, _validation_compiled
from onedsl.operators._schema import OpSchema, Port
from onedsl.operators._validation import ArrayInfo

LAST = _core.StatisticsShape.channel_last
BROADCAST = _core.StatisticsShape.broadcast
ONEDNNS = [
    BatchNormTrainingBackward,
    BatchNormForwardTraining,
    BatchNormReLUForwardTraining,
    BatchNormReLUTrainingBackward,
]
CLASSES = [*ONEDNNS, BatchNormTrainingBackprop, BatchNormalizationGrad]


class TestDialects:
    @pytest.mark.parametrize("cls", CLASSES)
    def test_ports_are_as_many_as_the_operation_has(self, cls):
        schema = cls._schema
        inputs, outputs = _core.ports(schema.operation)
        assert len(schema.inputs) == len(inputs)
        assert len(schema.outputs) == len(outputs)
        assert schema.inputs[0].kind == "tensor"

    @pytest.mark.parametrize("cls", ONEDNNS)
    def test_onednns_own_names(self, cls):
        schema = cls._schema
        assert _core.ports(schema.operation) == tuple(
            tuple(port.name for port in ports) for ports in (schema.inputs, schema.outputs)
        )

    @pytest.mark.parametrize("cls", CLASSES)
    def test_names(self, cls):
        schema = cls._schema
        inputs = [port.name for port in schema.inputs]
        outputs = [port.name for port in schema.outputs]
        assert len({*inputs, *outputs}) == len(inputs) + len(outputs)
        assert list(schema.result._fields) == outputs
        assert set(schema.always) <= set(outputs)
        assert schema.ignored in ("", *inputs)
        assert {port.over for port in schema.outputs} <= {"", *inputs}


# Other ports than the gradient has, several optional ones, all outputs.
FORWARD = OpSchema(
    _core.Operation.training_backward,
    inputs=(
        Port("src", "tensor"),
        Port("mean", "statistic"),
        Port("variance", "statistic"),
        Port("gamma", "statistic", optional=True),
        Port("beta", "statistic", optional=True, document="Shift"),
    ),
    outputs=(
        Port("dst", "tensor", over="src"),
        Port("running_mean", "statistic"),
        Port("running_variance", "statistic"),
    ),
    result=tuple,
    statistics=_core.Statistics.batch,
    types={"f32": ("f32",)},
    ranks=(2, 4),
)


def arrays():
    return [np.ones((4, 6), np.float32)[:, :3], *(np.ones(6, np.float32)[::2] for _ in range(4))]


class TestAnyPorts:
    """The shared parts, on an operator class that does not exist."""

    @pytest.mark.parametrize("absent", [(), (3,), (4,), (3, 4)], ids=str)
    def test_right_inputs(self, absent):
        inputs = [None if i in absent else a for i, a in enumerate(arrays())]
        _validation.arguments(FORWARD, LAST, inputs)
        dense = _dense.inputs(FORWARD, LAST, inputs)
        assert [a is None for a in dense] == [i in absent for i in range(5)]
        assert all(a is None or a.flags.c_contiguous for a in dense)

    @pytest.mark.parametrize(
        ("position", "bad", "error", "words"),
        [
            (0, np.ones(3, np.float32), ValueError, "src must have 2 dimensions or more"),
            (0, np.ones((1,) * 5, np.float32), ValueError, "src must have 4 dimensions at most"),
            (0, np.ones((4, 3), np.float16), TypeError, "src must be f32, not f16"),
            (1, np.ones(4, np.float32), ValueError, r"mean must have shape \(3,\)"),
            (1, None, TypeError, "mean must be a NumPy array"),
            (2, np.ones(4, np.float32), ValueError, r"variance must have shape \(3,\)"),
            (3, np.ones(3, np.float16), TypeError, "gamma must be f32 as mean is, not f16"),
            (4, np.ones(4, np.float32), ValueError, r"beta \(Shift\) must have shape \(3,\)"),
        ],
    )
    def test_wrong_inputs(self, position, bad, error, words):
        inputs = [*arrays()[:position], bad, *arrays()[position + 1 :]]
        with pytest.raises(error, match=words):
            _validation.arguments(FORWARD, LAST, inputs)

    def test_all_outputs_and_no_other(self):
        assert FORWARD.all_outputs == _validation.outputs("all", FORWARD) == 0b111
        x, s = np.ones((4, 3), np.float32), np.ones(3, np.float32)
        assert _validation.members(FORWARD, 0b111, [x, s, s]) == (x, s, s)
        with pytest.raises(ValueError, match=r"out\.running_variance must be an array, not None"):
            _validation.members(FORWARD, 0b111, (x, s, None))
        with pytest.raises(
            TypeError, match=r"\(dst, running_mean, running_variance\), not ndarray"
        ):
            _validation.members(FORWARD, 0b111, x)

    def test_outputs_may_lie_where_the_list_says(self):
        src, *statistics = (np.ascontiguousarray(a) for a in arrays())
        inputs = [src, *statistics]
        fresh = [np.empty_like(statistics[0]) for _ in range(2)]
        _validation.buffers(FORWARD, inputs, inputs, (src, *fresh))
        with pytest.raises(ValueError, match=r"out\.running_mean overlaps mean; give it memory of"):
            _validation.buffers(FORWARD, inputs, inputs, (src, statistics[0], fresh[1]))
        with pytest.raises(ValueError, match=r"out\.dst overlaps beta; it may be exactly src"):
            over = np.empty_like(src)
            inside = over.reshape(-1)[:3]
            _validation.buffers(FORWARD, [*inputs[:4], inside], inputs, (over, *fresh))

    def test_not_what_was_compiled(self):
        from onedsl import TensorSpec

        specs = TensorSpec((4, 3)), TensorSpec((3,))
        inputs = [np.ascontiguousarray(a) for a in arrays()]
        _validation_compiled.not_compiled_for(FORWARD, inputs, *specs, 0b11111)
        with pytest.raises(TypeError, match=r"beta \(Shift\) is given, .* with beta=False"):
            _validation_compiled.not_compiled_for(FORWARD, inputs, *specs, 0b01111)
        with pytest.raises(TypeError, match=r"gamma is missing, .* with gamma=True"):
            _validation_compiled.not_compiled_for(
                FORWARD, [*inputs[:3], None, inputs[4]], *specs, 0b11111
            )


class TestDescribed:
    """What has no memory is refused by its shape and type alone."""

    SRC = ArrayInfo((2**40, 2**30), "f32")
    STATISTIC = ArrayInfo((2**30,), "f32")

    def test_right(self):
        schema = BatchNormTrainingBackward._schema
        _validation.arguments(schema, LAST, [self.SRC, self.SRC, *[self.STATISTIC] * 3])
        _validation.arguments(schema, LAST, [self.SRC, self.SRC, *[self.STATISTIC] * 2, None])

    def test_wrong(self):
        schema = BatchNormTrainingBackward._schema
        short = ArrayInfo((2**29,), "f32")
        with pytest.raises(ValueError, match=r"variance must have shape \(1073741824,\)"):
            _validation.arguments(
                schema, LAST, [self.SRC, self.SRC, self.STATISTIC, short, self.STATISTIC]
            )
        with pytest.raises(TypeError, match="mean must be f32 where src is f32, not bf16"):
            bf16 = ArrayInfo((2**30,), "bf16")
            _validation.arguments(schema, LAST, [self.SRC, self.SRC, bf16, bf16, None])
        with pytest.raises(ValueError, match=r"InputGradientTensor\) must have input"):
            _validation.arguments(
                BatchNormalizationGrad._schema,
                BROADCAST,
                [self.SRC, self.STATISTIC, *[self.SRC] * 3],
            )
