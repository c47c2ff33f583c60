"""Runs random graphs as written and repaired, through onedsl's public interface.

``random_graphs.py N [SEED]`` tests N graphs of one to four ops: any rank, sizes of 0 and 1, strides
of every kind, attributes at their limits, ids that repeat. oneDNN or onedsl refuses each
(ValueError, UnsupportedError), or the results are right, or a call warns with OneDNNDefectWarning.
Anything else is printed with its seed, and the exit status is 1. Results are not judged if
variance + epsilon is negative or nearly zero. Child processes run the graphs, as the fuzzer's.
"""

import dataclasses
import json
import math
import random
import sys
import warnings
from collections import Counter

import numpy as np
from fuzz.workers import make_calls, run_children
from helpers import NUMPY

import onedsl
from onedsl import testing
from onedsl.cli.run import documented
from onedsl.graph import Graph
from onedsl.graph._parts import FORWARD, KINDS
from onedsl.graph._parts import GRADIENT as BACKWARD

ELEMENTWISE = [kind for kind in KINDS if not KINDS[kind].is_batch_norm]
SURROUNDINGS = 64  # elements before and after each output, which must stay as they are
REFUSALS = (ValueError, onedsl.UnsupportedError)
OUTCOMES = ("right", "warned", "refused", "not judged")
WAYS = ("written", "repaired")


class NotJudgedError(Exception):
    """The results of a graph have no exact value, or none that f32 can approximate."""


# ---- Random graphs, as JSON documents ----


class Generator:
    """A random graph. Most choices are valid, so that many graphs run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        # A factor of the probabilities of all unusual and invalid choices.
        self.unusual = self.rng.choice([0, 0.05, 0.3, 1])
        self.ids = iter(self.random_ids())
        rank = self.pick([2, 3, 4, 4, 4, 5, 5], range(1, 17), 0.3)
        self.data_format = self.rng.choice(["NXC", "NCX"])
        self.channels = self.pick([1, 3, 5, 8, 16, 17, 32], range(41))
        most = 6 if rank < 5 else 3 if rank < 8 else 2
        self.shape = [self.pick(range(1, most), [0, 1, 2, 2**31, 2**62], 0.02) for _ in range(rank)]
        if self.is_rare(0.1):
            self.shape[0] = 0
        self.shape[1 if self.data_format == "NCX" and rank > 1 else -1] = self.channels
        self.dtype = self.pick(["f32", "bf16"], ["f16", "s8", ""])
        self.statistics_dtype = self.pick(["f32"], ["bf16", "f16"])
        self.layout = self.rng.choices(["dense", "one order", "any order", "gaps"], [6, 2, 1, 2])[0]
        self.order = self.rng.sample(range(rank), rank)
        self.tensors: list[dict] = [self.tensor() for _ in range(self.rng.choice([1, 2, 3]))]
        self.statistics: list[dict] = []
        self.computed: list[dict] = []
        kinds = [BACKWARD, FORWARD] if self.rng.random() < 0.6 else []
        kinds = [self.rng.choice(kinds)] if kinds else self.several_kinds()
        ops = [self.op(i, kind) for i, kind in enumerate(kinds)]
        if self.is_rare(0.05):
            self.rng.shuffle(ops)
        if self.is_rare(0.2):
            self.make_invalid(self.rng.choice(ops))
        if self.is_rare(0.1):
            op, name = self.rng.choice(ops), self.rng.choice(["kind", "epsilon", "min", "x"])
            value = self.rng.choice([None, "", "NXC", "\0", True, [1, 2], 2**70])
            (op if name == "kind" else op["attrs"])[name] = value
        self.document = {"graph": ops}
        if self.rng.random() < 0.1:
            self.document["output_ports"] = [tensor["id"] for tensor in self.computed]

    def is_rare(self, chance):
        return self.rng.random() < chance * self.unusual

    def pick(self, usual, rare, chance=0.1):
        return self.rng.choice(rare if self.is_rare(chance) else usual)

    def random_ids(self):
        start = self.pick([0, 1, 100], [2**31 - 2, 2**32, 2**63 - 100, -1])
        ids = list(range(start, start + 90))
        if self.rng.random() < 0.1:
            self.rng.shuffle(ids)
        if self.is_rare(0.1):
            ids[self.rng.randrange(6)] = ids[self.rng.randrange(6)]
        return ids

    def make_invalid(self, op):
        """Remove, repeat or change something without regard for the rest."""
        side = op[self.rng.choice(["inputs", "inputs", "outputs"])]
        if not side:
            return
        i, name = self.rng.randrange(len(side)), self.rng.choice([*side[0], "remove", "repeat"])
        if name == "remove":
            del side[i]
        elif name == "repeat":
            side.append(side[i])
        elif name in ("shape", "stride"):
            sizes = [-(2**63), -1, 0, 1, 2, 16, 240, 2**31, 2**62, 2**63, 2**70]
            side[i] = {**side[i], name: self.rng.choices(sizes, k=self.rng.randrange(14))}
        else:
            value = self.rng.choice([-1, 0, 2**63, 2**70, "", "undef", "any", "\0", "\ud800", None])
            side[i] = {**side[i], name: value}

    def several_kinds(self):
        norms = [BACKWARD, FORWARD] if 2 <= len(self.shape) <= 5 else []
        kinds = [*norms, *norms, *ELEMENTWISE]
        return [self.pick(kinds, ["MatMul"], 0.005) for _ in range(self.rng.choice([1, 2, 3, 4]))]

    def strides(self, shape):
        order = list(range(len(shape)))
        if self.layout == "one order":
            order = self.order
        elif self.layout != "dense":
            self.rng.shuffle(order)
        strides, stride = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis] = stride
            stride *= max(shape[axis], 1)
            if self.layout == "gaps":
                stride += self.pick([0, 0, 1, 7, 16], [2**31], 0.005)
        if strides and self.is_rare(0.05):
            axis = self.rng.randrange(len(shape))
            strides[axis] = self.rng.choice([0, 1, strides[axis] // 2, -strides[axis], 2**40])
        return strides

    def new(self, shape, dtype, strides):
        return {
            "id": next(self.ids),
            "dtype": dtype,
            "shape": shape,
            "stride": strides,
            "layout_type": self.pick(["strided"], ["any", "opaque", "undef"], 0.005),
            "property_type": self.pick(["undef"], ["constant", "variable", "x"], 0.03),
        }

    def tensor(self):
        dtype = self.pick([self.dtype], ["f32", "bf16"], 0.005)
        return self.new(self.shape, dtype, self.strides(self.shape))

    def statistic(self):
        dtype = self.pick([self.statistics_dtype], ["f32", "bf16"], 0.005)
        if self.statistics and self.rng.random() < 0.03:
            return self.rng.choice(self.statistics)
        channels = self.pick([self.channels], [self.channels + 1], 0.002)
        strides = [self.pick([1], [0, 2, 17, -1], 0.02)]
        self.statistics.append(self.new([channels], dtype, strides))
        return self.statistics[-1]

    def known(self):
        """Return a tensor that an op reads, often one that another op computes."""
        if self.computed and self.rng.random() < 0.7:
            return self.rng.choice(self.computed)
        if self.rng.random() < 0.5:
            self.tensors.append(self.tensor())
        return self.rng.choice(self.tensors)

    def op(self, number, kind):
        attributes = {}
        if kind in (BACKWARD, FORWARD):
            statistics = self.pick([3], [0, 1, 2, 4]) if kind == BACKWARD else 4
            if kind == FORWARD:
                statistics = self.pick([4, 4, 2], [1, 3, 5])
            tensors = 2 if kind == BACKWARD else 1
            inputs = [self.known() for _ in range(tensors)]
            inputs += [self.statistic() for _ in range(statistics)]
            sums = self.pick([2], [0, 1, 3], 0.2) if kind == BACKWARD else self.pick([4], [3], 0.01)
            outputs = [self.tensor(), *(self.statistic() for _ in range(sums))]
            attributes["epsilon"] = self.pick(
                [1e-3, 1e-5], [0.0, 1.0, 3e38, 1e300, -0.01, -9, math.inf, math.nan]
            )
            attributes["data_format"] = self.pick([self.data_format], ["NXC", "NCX", "NHWC"], 0.02)
            if kind == FORWARD or self.is_rare(0.01):
                attributes["momentum"] = self.pick([0.9, 0.1], [0.0, 1.0, -0.5, 1.5, 1e-45, 1e30])
        else:
            count = 2 if kind == "Add" or kind.endswith("Backward") else 1
            inputs = [self.known() for _ in range(count)]
            outputs = [self.tensor()]
            if "Clamp" in kind:
                attributes |= {"min": self.pick([0.0], [-0.5, 1.0]), "max": 0.75}
            if "Backward" in kind and self.rng.random() < 0.9:
                attributes["use_dst"] = self.rng.random() < 0.7
        if attributes and self.is_rare(0.05):
            del attributes[self.rng.choice(list(attributes))]
        if self.is_rare(0.03):
            outputs[0] = inputs[0]
        self.computed.append(outputs[0])
        return {
            "id": self.pick([number], [0, 2**63 - 1 - number, 2**63], 0.02),
            "name": f"op{number}",
            "kind": kind,
            "attrs": {name: typed(value) for name, value in attributes.items()},
            "inputs": inputs,
            "outputs": outputs,
        }


def typed(value):
    if isinstance(value, bool):
        return {"type": "bool", "value": value}
    return {"type": "string" if isinstance(value, str) else "f32", "value": value}


# ---- References ----


def rounded(array, dtype):
    with np.errstate(over="ignore"):
        return array.astype(NUMPY[dtype]).astype(np.float64)


def evaluate(ops, values, noise):
    """Return the ops' tensors in float64 by id, from those of the graph's inputs.

    `noise` multiplies every tensor by numbers near 1, as rounding does.
    """
    values = {number: noise(array, "f32") for number, array in values.items()}
    for op in ops:
        arrays = [values[tensor.id] for tensor in op.inputs]
        for tensor, result in zip(op.outputs, formula(op, arrays), strict=False):
            values[tensor.id] = noise(rounded(result, tensor.dtype), tensor.dtype)
    return values


def formula(op, arrays):
    """Return the outputs of an op by oneDNN's documentation, in float64."""
    if op.kind in ELEMENTWISE:
        return documented(op, *arrays)
    # The reference needs a positive epsilon: only variance + epsilon counts.
    epsilon = float(np.float32(op.attrs["epsilon"]))
    shift = epsilon - 1

    def with_epsilon_1(*arrays, **attributes):
        attributes = op.attrs | {"epsilon": 1.0} | attributes
        return documented(dataclasses.replace(op, attrs=attributes), *arrays)

    def check(variance):
        if np.any(variance + epsilon < 1e-30):
            raise NotJudgedError

    if op.kind == BACKWARD:
        src, diff_dst, mean, variance, *gamma = arrays
        check(variance)
        return with_epsilon_1(src, diff_dst, mean, variance + shift, *gamma)
    src, *_ = arrays
    # It needs a momentum from 0 to 1, too: running statistics are linear in the momentum.
    keep = float(np.float32(op.attrs.get("momentum", 0.5)))  # 0.5: not documented
    (_, *new, mean, variance), (_, *old, _, _) = (
        with_epsilon_1(*arrays, momentum=number) for number in (0.0, 1.0)
    )
    check(variance)
    running = [a + keep * (b - a) for a, b in zip(new, old, strict=True)]
    options = {"data_format": op.attrs.get("data_format", "NXC"), "mean": mean}
    dst = testing.batch_norm(src, *arrays[3:], epsilon=1.0, variance=variance + shift, **options)
    return [dst, *running, mean, variance]


def references(ops, inputs, seed):
    """Return exact values by id, and several with rounding errors, which show ill-conditioning."""
    rng = np.random.default_rng(seed)

    def noise(array, dtype):
        unit = {"f32": 2.0**-22, "bf16": 2.0**-9, "f16": 2.0**-12}[dtype]
        return array * (1 + unit * rng.standard_normal(array.shape))

    with np.errstate(all="ignore"):
        exact = evaluate(ops, inputs, lambda array, dtype: array)
        return exact, [evaluate(ops, inputs, noise) for _ in range(4)]


def error_of(got, dtype, exact, noisy):
    """Return how often the error is as large as the tolerance."""
    got = got.astype(np.float64)
    with np.errstate(all="ignore"):
        known = np.abs(exact) < 2.0**120  # oneDNN computes in f32
        for array in noisy:
            known &= np.abs(array) < 2.0**120
        if np.any(np.isnan(got) != np.isnan(exact), where=known | np.isnan(exact)):
            return math.inf
        norm = np.linalg.norm(exact[known])
        limit = norm * (3 * testing.TOLERANCES[dtype] + 1e-6 * math.sqrt(got.size))
        limit += 10 * max(np.linalg.norm((array - exact)[known]) for array in noisy)
        error = np.linalg.norm((got - exact)[known])
    return error / limit if error > 2.0**-140 else 0.0


# ---- Runs ----


def memory_of(tensor):
    """Return an array for a tensor, and the memory around it, filled with NaN."""
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True) if n)
    raw = np.full(max(size, 0) + 2 * SURROUNDINGS, np.nan, NUMPY[tensor.dtype])
    steps = [stride * raw.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(raw[SURROUNDINGS:], tensor.shape, steps), raw


def random_inputs(graph, seed):
    """Return arrays for the inputs by name. Those for statistics are positive."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, tensor in graph.inputs.items():
        array, _ = memory_of(tensor)
        numbers = rng.standard_normal(tensor.shape) * 1.5 + 0.5
        array[...] = np.abs(numbers) + 0.5 if len(tensor.shape) == 1 else numbers
        arrays[name] = array
    return arrays


def run(graph, requested, seed):
    """Return an outcome, or what is wrong, for a graph or the repair of a requested one."""
    compiled = graph.compile()
    arrays = random_inputs(requested, seed)
    before = {name: array.copy() for name, array in arrays.items()}
    outputs = {name: memory_of(tensor) for name, tensor in requested.outputs.items()}
    untouched = {name: raw.copy() for name, (_, raw) in outputs.items()}
    out = {name: array for name, (array, _) in outputs.items()}
    in_place = {"diff_src": "diff_dst", "dst": "src"}
    for name in set(out) & in_place.keys():
        source = in_place[name]
        is_alike = requested.inputs.get(source) is not None and (
            requested.inputs[source].strides == requested.outputs[name].strides
        )
        if len(graph.ops) == 1 and seed % 3 == 0 and is_alike:
            out[name] = arrays[source]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = compiled(**arrays, out=out)
    got = {name: np.array(array) for name, array in results.items()}
    for name, (array, raw) in outputs.items():
        array[...] = np.nan
        if raw.tobytes() != untouched[name].tobytes():
            return f"{name}: wrote between or around its elements"
    for name, array in arrays.items():
        is_overwritten = any(array is written for written in out.values())
        if not is_overwritten and not np.array_equal(array, before[name], equal_nan=True):
            return f"{name}: the input was changed"
    if caught:
        unexpected = [w for w in caught if w.category is not onedsl.OneDNNDefectWarning]
        return f"warning: {unexpected[0].message}" if unexpected else "warned"
    inputs = {t.id: before[name].astype(np.float64) for name, t in requested.inputs.items()}
    try:
        exact, noisy = references(requested.ops, inputs, seed)
    except NotJudgedError:
        return "not judged"
    for name, tensor in requested.outputs.items():
        others = [values[tensor.id] for values in noisy]
        error = error_of(got[name], tensor.dtype, exact[tensor.id], others)
        if not error <= 1:
            return f"{name}: {error:.3g} times the tolerance"
    return "right"


def outcome(seed):
    """Return the outcomes of the graph as written and repaired, and its JSON."""
    text = json.dumps(Generator(seed).document)
    found = []
    for repaired in (False, True):
        try:
            requested = Graph.from_json(text)
            graph = requested.repaired() if repaired else requested
            str(graph)
            found.append(run(graph, requested, seed))
        except REFUSALS:
            found.append("refused")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    if found[1] == "warned":
        found[1] = "the repaired graph warns"
    return found, text


def check(seed):
    """Return the outcomes of the graph as written and repaired. Raise an error for any other."""
    found, text = outcome(seed)
    for how, kind in zip(WAYS, found, strict=True):
        assert kind in OUTCOMES, f"as {how}: {kind}: {text}"
    return "/".join(found)


def main(count, seed=0):
    found, failures = run_children([sys.executable, __file__, "--child"], seed, count)
    found.pop("wrong", None)
    for i, how in enumerate(WAYS):
        counts = Counter()
        for outcomes, number in found.items():
            counts[outcomes.split("/")[i]] += number
        print(f"{how}: {', '.join(f'{counts[kind]} {kind}' for kind in OUTCOMES)}")
    print(*failures, f"failures: {len(failures)}", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        make_calls(check, *map(int, sys.argv[2:]))
    else:
        sys.exit(main(*map(int, sys.argv[1:])))
