"""Benchmarks of calls: asv runs each function whose name begins with "time" or "peakmem"."""

import numpy as np

import onedsl
from onedsl import testing

SHAPES = {"16 KB": (4, 4, 4, 64), "12 MB": (16, 56, 56, 64)}
ATTRIBUTES = {"ReLU": {"activation": "relu"}, "SiLU": {"activation": "silu"}}


def problem(shape, dtype, data_format="NXC"):
    if data_format == "NCX":
        shape = shape[0], shape[-1], *shape[1:-1]
    return testing.random_problem(shape, dtype, data_format=data_format)


class Gradient:
    """The gradient, into new arrays and into given ones."""

    param_names = "size", "dtype", "data_format"
    params = [*SHAPES], ["f32", "bf16"], ["NXC", "NCX"]

    def setup(self, size, dtype, data_format):
        self.op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
        self.problem = problem(SHAPES[size], dtype, data_format)
        self.out = self.op(*self.problem)

    def time_new(self, *_):
        self.op(*self.problem)

    def time_out(self, *_):
        self.op(*self.problem, out=self.out)

    def peakmem_out(self, *_):
        self.op(*self.problem, out=self.out)


class Forward:
    """The forward pass."""

    param_names = ("size",)
    params = ([*SHAPES],)

    def setup(self, size):
        self.op = onedsl.BatchNormForwardTraining(1e-5)
        src, _, mean, variance, gamma = problem(SHAPES[size], "f32")
        self.inputs = src, mean, variance, gamma, gamma
        self.out = self.op(*self.inputs)

    def time_out(self, *_):
        self.op(*self.inputs, out=self.out)


class Activated:
    """Both passes with an activation and a residual."""

    param_names = "size", "activation"
    params = [*SHAPES], [*ATTRIBUTES]

    def setup(self, size, activation):
        attributes = ATTRIBUTES[activation]
        src, diff_dst, mean, variance, gamma = problem(SHAPES[size], "f32")
        self.forward = onedsl.BatchNormActForwardTraining(1e-5, **attributes)
        self.backward = onedsl.BatchNormActTrainingBackward(1e-5, **attributes)
        self.inputs = src, mean, variance, gamma, gamma, diff_dst
        self.given = src, diff_dst, mean, variance, gamma, gamma, np.copy(diff_dst)
        self.forward_out, self.out = self.forward(*self.inputs), self.backward(*self.given)

    def time_forward(self, *_):
        self.forward(*self.inputs, out=self.forward_out)

    def time_gradient(self, *_):
        self.backward(*self.given, out=self.out)


class Strided:
    """A gradient whose tensors have gaps: nothing is copied."""

    def setup(self):
        src, diff_dst, *self.statistics = problem((16, 56, 56, 64), "f32")
        self.tensors = [np.repeat(array, 2, 0)[::2] for array in (src, diff_dst)]
        self.op = onedsl.BatchNormTrainingBackward(1e-5)
        self.out = self.op(src, diff_dst, *self.statistics)

    def time_out(self):
        self.op(*self.tensors, *self.statistics, out=self.out)


def timeraw_import():
    return "import onedsl"
