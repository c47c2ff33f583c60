"""Calls enable first in each context of PyTorch, in a forked process, and a batch norm after it.

Prints the log and the name of each context, and their number.
"""

import logging
import os
import sys

import torch
import torch._dynamo
import torch.fx.experimental.proxy_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import onedsl
import onedsl.torch


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        return result.to("meta") if isinstance(result, torch.Tensor) else result


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        return result.to("meta") if isinstance(result, torch.Tensor) else result


class Model(torch.nn.Module):
    def forward(self, x):
        onedsl.torch.enable(huge_pages=False)
        return (x + 1).sum()


def within(context):
    with context:
        onedsl.torch.enable(huge_pages=False)


x = torch.ones(2, 2)
contexts = {
    "device": lambda: within(torch.device("meta")),
    "default device": lambda: (
        torch.set_default_device("meta"),
        onedsl.torch.enable(huge_pages=False),
    ),
    "default dtype": lambda: (
        torch.set_default_dtype(torch.float64),
        onedsl.torch.enable(huge_pages=False),
    ),
    "inference mode": lambda: within(torch.inference_mode()),
    "autocast": lambda: within(torch.autocast("cpu", torch.bfloat16)),
    "function mode": lambda: within(Functions()),
    "dispatch mode": lambda: within(Dispatch()),
    "FakeTensorMode": lambda: within(torch._subclasses.FakeTensorMode()),
    "make_fx": lambda: torch.fx.experimental.proxy_tensor.make_fx(Model())(x),
    "export": lambda: torch.export.export(Model(), (x,)),
    "compile": lambda: torch.compile(Model(), backend="eager")(x),
    "vmap": lambda: torch.vmap(Model())(x),
    "grad": lambda: torch.func.grad(Model())(x),
    "jvp": lambda: torch.func.jvp(Model(), (x,), (x,)),
    "functionalize": lambda: torch.func.functionalize(Model())(x),
    "trace": lambda: torch.jit.trace(Model(), x),
}
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
options = {"dtype": torch.float32, "device": "cpu"}
for name, call in contexts.items():
    if os.fork() == 0:  # the first call of a process
        call()
        with onedsl.torch.enable(huge_pages=False), onedsl.verbose():
            torch.nn.functional.batch_norm(torch.ones(4, 3, **options), None, None, training=True)
        print(name, flush=True)
        os._exit(0)
    os.wait()
print(len(contexts))
