"""Functions that the tests of SyncBatchNorm run on each rank."""

from __future__ import annotations

import copy
import time

import ranks
from torch_helpers import DTYPES, nn, onedsl_torch, torch

distributed = torch.distributed


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def problem(shape, dtype="f32", memory="contiguous"):
    """Return the input of the whole batch and the gradient of its output."""
    made = (random(*shape, seed=0) * 2 + 3, random(*shape, seed=1))
    form = torch.channels_last if memory == "channels_last" else torch.contiguous_format
    return [t.to(DTYPES[dtype]).contiguous(memory_format=form) for t in made]


def part(rank, sizes, *tensors):
    """Return copies of a rank's part of the batch, in the same memory format."""
    begin = sum(sizes[:rank])
    return [
        t[begin : begin + sizes[rank]].clone(memory_format=torch.preserve_format) for t in tensors
    ]


def new_layer(channels, **kwargs):
    layer = onedsl_torch.SyncBatchNorm(channels, **kwargs)
    for i, t in enumerate((*layer.parameters(), *layer.buffers())):
        if t.is_floating_point():
            t.data.copy_(random(channels, seed=10 + i).abs() + 0.5)
    return layer


def step(layer, src, diff_dst):
    """Run both passes and return all results."""
    src = src.detach().requires_grad_()
    dst = layer(src)
    dst.backward(diff_dst)
    return {
        "dst": dst.detach(),
        "diff_src": src.grad,
        **{f"diff_{name}": p.grad for name, p in layer.named_parameters()},
        **dict(layer.named_buffers()),
    }


def numpy(tensors):
    """Convert tensors to NumPy arrays of float64 or integers, which pickle without file handles."""
    return {
        name: None if t is None else (t.double() if t.is_floating_point() else t).numpy()
        for name, t in tensors.items()
    }


def layer(rank, sizes, shape, dtype, memory):
    tensors = part(rank, sizes, *problem(shape, dtype, memory))
    results = step(new_layer(shape[1]), *tensors)
    assert results["dst"].dtype == results["diff_src"].dtype == DTYPES[dtype]
    if sizes[rank]:
        assert results["dst"].stride() == results["diff_src"].stride() == tensors[0].stride()
    return numpy(results)


def new_kind(kwargs, frozen):
    made = new_layer(5, **kwargs)
    if frozen:
        getattr(made, frozen).requires_grad_(False)
    return made


def kind(rank, kwargs, frozen):
    """Return the results of a training step, and compare evaluation with plain batch norm."""
    made = new_kind(kwargs, frozen)
    tensors = part(rank, (1, 3), *problem((4, 5, 3, 3)))
    results = numpy(step(made, *tensors))
    made.zero_grad()
    plain = copy.deepcopy(made)
    plain.__class__ = nn.BatchNorm2d
    for ours, theirs in zip(
        *(step(layer.eval(), *tensors).values() for layer in (made, plain)), strict=True
    ):
        assert ours is theirs is None or torch.equal(ours, theirs)
    return results


def bfloat16(rank):
    made = new_layer(5).bfloat16()
    results = step(made, *part(rank, (1, 3), *problem((4, 5, 3, 3), "bf16")))
    assert all(t.dtype == torch.bfloat16 for t in results.values() if t.is_floating_point())
    return numpy(results)


def same_part_everywhere(_rank):
    return numpy(step(new_layer(33), *problem((7, 33, 5, 3))))


def all_empty(_rank):
    made = new_layer(3)
    before = copy.deepcopy(made)
    results = step(made, *problem((0, 3, 4, 4)))
    assert results["dst"].shape == results["diff_src"].shape == (0, 3, 4, 4)
    assert torch.equal(made.running_mean, before.running_mean)
    assert torch.equal(made.running_var, before.running_var)
    return numpy(results)


def different_channels(rank):
    """Return the error of a rank, and check that the group remains usable."""
    raised = ranks.caught(new_layer(3 + rank), torch.ones(2, 3 + rank, 2, 2))
    assert not ranks.caught(new_layer(3), torch.ones(2, 3, 2, 2))
    return raised


def one_value(rank):
    """Return the error of a rank, and check that the group remains usable."""
    sizes = (0, 1, 0)
    made = new_layer(3)
    raised = ranks.caught(step, made, *part(rank, sizes, *problem((1, 3, 1, 1))))
    assert not ranks.caught(step, made, *part(rank, (1, 1, 0), *problem((2, 3, 1, 1))))
    return raised


def exchanges(rank):
    """Return the name and bytes of each exchange, of a full step and of later calls."""
    seen = []
    for name, index in (("all_gather", 1), ("all_reduce", 0)):
        call = getattr(distributed, name)

        def count(*args, name=name, index=index, call=call, **kwargs):
            seen.append((name, args[index].nbytes))
            return call(*args, **kwargs)

        setattr(distributed, name, count)
    src, diff_dst = part(rank, (2, 2), *problem((4, 5, 3, 3)))
    made = new_layer(5)
    step(made, src, diff_dst)
    both = list(seen)
    made(src).backward(diff_dst)  # the gradient of src is not needed
    with torch.no_grad():
        made(src)
    made.eval()(src.requires_grad_()).backward(diff_dst)
    return both, seen[len(both) :]


def groups(rank):
    """Run a step in two groups of two ranks, each with its own statistics."""
    pairs = [distributed.new_group(pair) for pair in ((0, 1), (2, 3))]
    mine, others = pairs[rank // 2], pairs[1 - rank // 2]
    tensors = part(rank, (1, 2, 3, 2), *problem((8, 5, 3, 3)))
    made = new_layer(5, process_group=mine)
    outside = new_layer(5, process_group=others)
    plain = nn.BatchNorm2d(5)
    plain.load_state_dict(outside.state_dict())
    alone = step(outside, *tensors), step(plain, *tensors)
    assert all(torch.equal(alone[0][name], alone[1][name]) for name in alone[1])
    return numpy(step(made, *tensors))


def infinite(rank):
    src, diff_dst = part(rank, (2, 2), *problem((4, 5, 3, 3)))
    if rank == 0:
        src[0, 1, 0, 0] = torch.inf
    return numpy(step(new_layer(5), src, diff_dst))


def regrouped(rank):
    """Return the errors of a layer in a second group, whose other layer has more channels."""
    first, second = distributed.new_group((0, 1)), distributed.new_group((0, 2))
    made = new_layer(4 if rank == 2 else 3, process_group=second if rank == 2 else first)
    src = torch.ones(2, made.num_features, 2, 2)
    raised = []
    if rank != 2:
        raised.append(ranks.caught(made, src))
    if rank != 1:
        made.process_group = second
        raised.append(ranks.caught(made, src))
    return raised


def invalid_inputs(_rank):
    made = new_layer(3)
    src, diff_dst = problem((2, 3, 2, 2))
    raised = [
        ranks.caught(made, invalid)
        for invalid in (src.double(), src.to("meta"), src[:, :2], src[0, 0, 0], src.to_sparse())
    ]
    assert made.num_batches_tracked == 0
    x = src.requires_grad_()
    (diff_src,) = torch.autograd.grad(made(x), x, diff_dst.requires_grad_(), create_graph=True)
    raised.append(ranks.caught(diff_src.sum().backward))
    return raised


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(5, 4, 1, bias=False), new_layer(4))


def compiled(rank):
    """Compare a compiled model with the eager one, and return the error of fullgraph=True."""
    eager = small_model()
    twin = copy.deepcopy(eager)
    src, diff_dst = part(rank, (1, 3), *problem((4, 5, 3, 3)))
    results = [step(eager, src, diff_dst[:, :4])]
    results.append(step(torch.compile(twin, backend="aot_eager"), src, diff_dst[:, :4]))
    for a, b in zip(results[0].values(), results[1].values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)
    return ranks.caught(torch.compile(twin, backend="aot_eager", fullgraph=True), src)


def autocast(rank, dtype):
    model = small_model()
    src, diff_dst = part(rank, (1, 3), *problem((4, 5, 3, 3)))
    with torch.autocast("cpu", DTYPES[dtype]):
        results = step(model, src, diff_dst[:, :4].to(DTYPES[dtype]))
    assert results["dst"].dtype == DTYPES[dtype]
    return numpy(results)


def late(rank, seconds):
    """Return the error of a rank that waits for rank 0, and the seconds until it came."""
    src, _ = problem((2, 3, 2, 2))
    if rank == 0:
        time.sleep(seconds)
        return None
    begin = time.monotonic()
    return ranks.caught(new_layer(3), src), time.monotonic() - begin


def network():
    """Return a network with smooth activations.

    With a ReLU, a rounding error that changes a sign changes the training.
    """
    torch.manual_seed(0)
    layers = []
    for channels_in, channels in ((3, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(channels_in, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels)]
        layers += [nn.SiLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))


def train(model, batch, share=slice(None), steps=20):
    """Train on a slice of each batch and return the weights and statistics."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    dtype = next(model.parameters()).dtype
    for at in range(steps):
        images = random(batch, 3, 8, 8, seed=at)[share].to(dtype)
        labels = (images.mean((1, 2, 3)) * 100).long() % 10
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    module = getattr(model, "module", model)
    return numpy(module.state_dict())


def train_together(rank, batch, synchronized):
    model = network()
    if synchronized:
        model = onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(model)
    each = batch // distributed.get_world_size()
    share = slice(rank * each, (rank + 1) * each)
    return train(nn.parallel.DistributedDataParallel(model), batch, share)
