"""Random modules whose forward methods use batch norm in every way the author could think of.

A module interprets a random program: a list of steps that read and write a list of tensors. The
same program runs with plain and with fused layers.
"""

from __future__ import annotations

import copy
import operator
import pickle
import random

from torch_helpers import nn, torch

F = nn.functional
checkpoint = torch.utils.checkpoint.checkpoint


class Cube(torch.autograd.Function):
    """C++ calls this with the tensor itself: no __torch_function__ is involved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x / 3

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] ** 2


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


RELUS = {
    "F.relu": F.relu,
    "F.relu in place": lambda t: F.relu(t, inplace=True),
    "F.relu in place, unused": lambda t: (F.relu(t, True), t)[1],
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "method": lambda t: t.relu(),
    "method in place": lambda t: t.relu_(),
    "layer": nn.ReLU(),
    "layer in place": nn.ReLU(inplace=True),
    "F.relu6": F.relu6,
    "relu6": nn.ReLU6(),
    "relu6 in place": nn.ReLU6(inplace=True),
    "hardtanh": nn.Hardtanh(0, 1.5),
    "other hardtanh": nn.Hardtanh(-1, 1),
    "leaky": lambda t: F.leaky_relu(t, 0.1),
    "silu": F.silu,
}
ADDS = {
    "+": operator.add,
    "+=": operator.iadd,
    "torch.add": torch.add,
    "add": lambda a, b: a.add(b),
    "add_": lambda a, b: a.add_(b),
    "alpha": lambda a, b: torch.add(a, b, alpha=2),
    "number": lambda a, b: a + 1,
    "number on the left": lambda a, b: 1 + a,
    "itself": lambda a, b: a + a,
    "broadcast": lambda a, b: a + b[:1],
    "double": lambda a, b: (a + b.double()).float(),
    "detached": lambda a, b: a + b.detach(),
    "twice": lambda a, b: a + b + b,
    "other strides": lambda a, b: a + b.transpose(2, 3),
    "then the input changes": lambda a, b: changed_after(a + b, b),
    "then the input's data changes": lambda a, b: data_changed_after(a + b, b),
}


def changed_after(total, b):
    with torch.no_grad():
        b.mul_(0.5)
    return total


def data_changed_after(total, b):
    b.data.mul_(0.5)
    return total


def in_place_of_view(t):
    view = t.view(-1)
    view.mul_(0.5)
    return t


WRITES = {
    "mul_": lambda t: t.mul_(0.5),
    "relu_": lambda t: t.relu_(),
    "data": lambda t: t.data.mul_(0.5),
    "data clamp": lambda t: t.data.clamp_(-0.5, 0.5),
    "no_grad": torch.no_grad()(lambda t: t.add_(0.25)),
    "index": lambda t: t[0].add_(1),
    "setitem": lambda t: operator.setitem(t, (slice(None), 0), 0.5),
    "view": in_place_of_view,
}
READS = {
    "scale": lambda m, t: t * m.scale,
    "sigmoid": lambda m, t: t.sigmoid(),
    "mode": lambda m, t: t * (2 if torch.is_grad_enabled() else 3),
    "branch": lambda m, t: t * 2 if t.detach().abs().max() > 2 else t - 1,
    "cat": lambda m, t: torch.cat([t, t], 1)[:, :4],
    "stack": lambda m, t: torch.stack([t, t.detach()]).sum(0),
    "detach": lambda m, t: t.detach(),
    "clone": lambda m, t: t.clone(),
    "view": lambda m, t: t.view(-1).view(t.shape),
    "transpose": lambda m, t: t.transpose(2, 3),
    "channels_last": lambda m, t: t.to(memory_format=torch.channels_last),
    "contiguous": lambda m, t: t.contiguous(),
    "no_grad": torch.no_grad()(lambda m, t: F.relu(t)),
    "no_grad sum": torch.no_grad()(lambda m, t: t + 1),
    "inference": lambda m, t: t * inference_mean(t),
    "function": lambda m, t: Cube.apply(t),
    "function that returns a view": lambda m, t: Same.apply(t),
    "vmap": lambda m, t: torch.func.vmap(lambda u: u * 2)(t),
    "vmap closure": lambda m, t: torch.func.vmap(lambda u: u * t)(torch.ones(2))[1],
    "func.grad closure": lambda m, t: t + torch.func.grad(lambda u: (u * t.detach()).sum())(t * 0),
    "dropout": lambda m, t: F.dropout(t, 0.0),
    "identity": lambda m, t: nn.Identity()(t),
    "mode of device": lambda m, t: device_mode(t),
    "deepcopy": lambda m, t: t * copy.deepcopy(t.detach()).mean(),
    "pickle": lambda m, t: t + pickle.loads(pickle.dumps(t.detach())),
    "numpy": lambda m, t: t * float(t.detach().numpy().mean()),
    "matmul": lambda m, t: t @ t.transpose(2, 3),
    "where": lambda m, t: torch.where(t > 0, t, t * 0.1),
}


def inference_mean(t):
    with torch.inference_mode():
        return t.mean().item()


def device_mode(t):
    with torch.device("cpu"):
        return F.relu(t)


def note_tensor(m, t):
    m.seen.append((tuple(t.shape), t.dtype, t.requires_grad, t.is_leaf, t.stride(), t.ndim))


def note_hook(m, t):
    if t.requires_grad:
        t.register_hook(lambda g: m.seen.append(float(g.square().sum())))


def note_gradient(m, t):
    if t.requires_grad:
        t.retain_grad()
        m.kept.append(t)


NOTES = {
    "count": lambda m, t: setattr(m, "count", m.count + 1),
    "last": lambda m, t: setattr(m, "last", t),
    "mean": lambda m, t: m.seen.append(float(t.detach().mean())),
    "item": lambda m, t: m.seen.append(t.sum().item()),
    "tensor": note_tensor,
    "hook": note_hook,
    "retain_grad": note_gradient,
    "statistics": lambda m, t: m.seen.append(float(m.norms[0].running_mean.sum())),
    "held statistics": lambda m, t: m.seen.append(float(m.held.sum())),
    "state_dict": lambda m, t: m.seen.append(float(m.state_dict()["norms.1.running_var"].sum())),
    "print": lambda m, t: m.seen.append(len(repr(t.detach().round().int().shape))),
    "graph": lambda m, t: m.seen.append(t.grad_fn is not None),
    "version": lambda m, t: m.seen.append(isinstance(t, torch.Tensor)),
}
HOOKS = {
    "forward": lambda m, norm: norm.register_forward_hook(
        lambda _m, _i, out: m.seen.append(float(out.detach().mean()))
    ),
    "changed": lambda m, norm: norm.register_forward_hook(lambda _m, _i, out: out * 0.5),
    "backward": lambda m, norm: norm.register_full_backward_hook(
        lambda _m, gi, go: m.seen.append(float(go[0].square().sum()))
    ),
    "pre": lambda m, norm: norm.register_forward_pre_hook(lambda _m, args: (args[0] * 0.5,)),
}


class RandomModule(nn.Module):
    def __init__(self, seed):
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))
        options = [{}, {}, {}, {"momentum": None}, {"affine": False}]
        options.append({"track_running_stats": False})
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(4, **(rng.choice(options) if i > 1 else {})) for i in range(4)
        )
        for norm in self.norms:
            if norm.affine:
                nn.init.uniform_(norm.weight, 0.5, 1.5)
                nn.init.uniform_(norm.bias, -0.5, 0.5)
        self.program = [self._step(rng) for _ in range(rng.randint(3, 10))]
        self.output = rng.random()
        self.scale, self.count, self.last = 1.5, 0, None
        self.seen, self.kept = [], []
        self.held = self.norms[0].running_mean
        self.hooked = rng.choice(list(HOOKS)) if rng.random() < 0.1 else None

    @staticmethod
    def _step(rng):
        kinds = "block block residual residual norm relu relu add add write read read note note"
        kind = rng.choice((kinds + " special").split())
        table = {"relu": RELUS, "add": ADDS, "write": WRITES, "read": READS, "note": NOTES}
        names = {
            "block": RELUS,
            "residual": [(a, r) for a in ADDS for r in RELUS],
            "special": [
                *("no_grad block", "autocast", "checkpoint", "reentrant checkpoint", "unused"),
                *("eval", "inner gradient", "weight", "bias", "two layers", "relu and sum"),
                *("gradient of the norm", "norm of norm", "double backward", "grad mode off"),
            ],
            "norm": ["norm"],
            **table,
        }[kind]
        return kind, rng.choice(list(names)), [rng.random() for _ in range(4)]

    def attach_hooks(self):
        if self.hooked:
            HOOKS[self.hooked](self, self.norms[0])

    def forward(self, x):
        values = [self.convs[0](x)]
        for kind, name, numbers in self.program:
            self._run(kind, name, numbers, values)
        grads = [v for v in values if v.requires_grad]
        other = grads[int(self.output * len(grads))] if grads else values[0]
        return values[-1] + 0.5 * other.float()

    def _run(self, kind, name, numbers, values):
        def pick(number):  # mostly the newest
            return values[-1 - min(int(number * number * len(values)), len(values) - 1)]

        t, u = pick(numbers[0]), pick(numbers[1])
        norm = self.norms[int(numbers[2] * len(self.norms))]
        conv = self.convs[int(numbers[3] * len(self.convs))]
        if kind == "norm":
            values.append(norm(t))
        elif kind == "block":
            values.append(RELUS[name](norm(conv(t))))
        elif kind == "residual":
            y = norm(conv(t))
            values.append(RELUS[name[1]](ADDS[name[0]](y, u)))
        elif kind == "relu":
            values.append(RELUS[name](t))
        elif kind == "add":
            values.append(ADDS[name](t, u))
        elif kind == "write":
            WRITES[name](t)
        elif kind == "read":
            values.append(READS[name](self, t))
        elif kind == "note":
            NOTES[name](self, t)
        else:
            values.append(self._special(name, norm, conv, t, u))

    def _special(self, name, norm, conv, t, u):
        def block(v):
            return F.relu(norm(conv(v)))

        if name == "no_grad block":
            with torch.no_grad():
                return block(t)
        if name == "grad mode off":
            y = norm(conv(t))
            with torch.set_grad_enabled(False):
                z = F.relu(y)
            return z + y
        if name == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                y = norm(conv(t))
            return F.relu(y).float()
        if name == "checkpoint":
            return checkpoint(block, t, use_reentrant=False)
        if name == "reentrant checkpoint":
            return checkpoint(block, t, use_reentrant=True)
        if name == "unused":
            norm(conv(t))
            return t
        if name == "eval":
            norm.eval()
            y = block(t)
            norm.train()
            return y
        if name == "inner gradient":
            y = norm(conv(t))
            z = F.relu(y)
            gradient = torch.autograd.grad(z.square().sum(), y, retain_graph=True)[0]
            return z + gradient.detach()
        if name == "gradient of the norm":
            y = norm(conv(t))
            z = F.relu(y + u)
            y.retain_grad()
            self.kept.append(y)
            return z
        if name == "double backward":
            y = F.relu(norm(conv(t)))
            gradient = torch.autograd.grad(y.square().sum(), conv.weight, create_graph=True)[0]
            return y * gradient.square().sum()
        if name in ("weight", "bias"):
            y = norm(conv(t))
            if norm.affine:
                with torch.no_grad():
                    getattr(norm, name).mul_(0.9)
            return F.relu(y)
        if name == "two layers":
            return F.relu(norm(t) + self.norms[1](t))
        if name == "relu and sum":
            y = norm(conv(t))
            return F.relu(y) + F.relu(y + u)
        return F.relu(norm(self.norms[0](t)))
