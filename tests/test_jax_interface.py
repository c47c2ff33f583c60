"""XLA handlers: their binary interface, rejected calls, exported and cached programs."""

import os
import shutil

import helpers
import numpy as np
import pytest
from helpers import EPSILON

import onedsl
from onedsl import _core, testing

jax = pytest.importorskip("jax", reason="JAX is optional, and not installed here")

import jax.numpy as jnp  # noqa: E402

import onedsl.jax  # noqa: E402

BACKWARD = "onedsl_batch_norm_training_backward"
FORWARD = "onedsl_batch_norm_forward_training"
ACT_BACKWARD = "onedsl_batch_norm_act_training_backward"
ATTRIBUTES = {
    "rank": np.int64(3),
    "channel_axis": np.int64(2),
    "frozen": np.int64(0),
    "epsilon": np.float64(EPSILON),
    "gamma": np.int64(1),
    "beta": np.int64(1),
    "activation": "relu",
}


def test_names_of_handlers():
    names = {operation: name for operation, (name, _) in _core.xla_handlers().items()}
    assert names == {
        "training_backward": BACKWARD,
        "forward_training": FORWARD,
        "act_training_backward": ACT_BACKWARD,
        "act_forward_training": "onedsl_batch_norm_act_forward_training",
    }


def test_interface_equals_the_header_of_xla():
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "the tests need a C++ compiler, as the README describes"
    source = helpers.TESTS / "programs" / "xla_interface.cpp"
    options = ("-std=c++17", "-fsyntax-only", "-isystem", jax.ffi.include_dir())
    helpers.run_program(compiler, *options, source)


def call(target=BACKWARD, inputs=None, results=None, **changes):
    """Call a handler directly, with any inputs, results and attributes."""
    if inputs is None:
        inputs = testing.random_problem((4, 3, 8))
    if results is None:
        results = [inputs[0], inputs[2], inputs[2]]
    results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in results]
    attributes = ATTRIBUTES | changes
    attributes = {name: value for name, value in attributes.items() if value is not None}
    return jax.block_until_ready(
        jax.jit(lambda *inputs: jax.ffi.ffi_call(target, results)(*inputs, **attributes))(*inputs)
    )


def changed(index, array):
    inputs = list(testing.random_problem((4, 3, 8)))
    inputs[index] = array
    return inputs


ONLY_RESIDUAL = {"target": ACT_BACKWARD, "gamma": None, "beta": None, "residual": np.int64(1)}
ZEROS = np.zeros((4, 3, 8), "f4")
OUTPUTS = [ZEROS, ZEROS[0, 0], ZEROS[0, 0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": None}, "epsilon must be an f64"),
        ({"epsilon": np.float32(1)}, "epsilon must be an f64"),
        ({"epsilon": "1"}, "epsilon must be an f64"),
        ({"epsilon": np.float64(0)}, "onedsl does not support an eps"),
        ({"epsilon": np.float64("nan")}, "eps"),
        ({"rank": np.int32(3)}, "rank must be an i64"),
        ({"rank": np.int64(4)}, "rank must be between 1 and the rank of src"),
        ({"rank": np.int64(-(1 << 63))}, "rank must be between 1 and the rank of src"),
        ({"frozen": "yes"}, "frozen must be an i64"),
        ({"target": FORWARD, "frozen": np.int64(1)}, "frozen must be 0"),
        ({"channel_axis": np.int64(3)}, "channel_axis must be an axis of src"),
        ({"channel_axis": np.int64(1)}, r"number of channels \(mean\)"),
        ({"inputs": changed(0, ZEROS.astype("i4"))}, r"dtypes .*\(src\)"),
        ({"inputs": changed(1, ZEROS[:2])}, r"shape or dtype .*\(diff_dst\)"),
        ({"inputs": changed(1, ZEROS.astype("f2"))}, r"shape or dtype .*\(diff_dst\)"),
        ({"inputs": changed(1, ZEROS[0])}, r"shape or dtype .*\(diff_dst\)"),
        ({"inputs": changed(2, ZEROS[0, 0].astype("f2"))}, r"support .* of this dtype \(mean\)"),
        ({"inputs": changed(3, ZEROS[0, 0].astype("f2"))}, r"of this dtype \(variance\)"),
        ({"inputs": changed(4, ZEROS[0, 0, :7])}, r"number of channels \(gamma\)"),
        ({"inputs": changed(4, ZEROS[0, :1])}, r"number of channels \(gamma\)"),
        ({"inputs": changed(1, ZEROS[..., None][..., :0])}, r"shape or dtype .*\(diff_dst\)"),
        ({"inputs": changed(4, ZEROS[0, 0][:, None][:, :0])}, r"number of channels \(gamma\)"),
        ({"inputs": [ZEROS], "results": OUTPUTS}, "there must be one array for each input"),
        ({"inputs": [], "results": OUTPUTS}, "there must be one array for each input"),
        ({"results": OUTPUTS[:2]}, "there must be one array for each output"),
        ({"results": [ZEROS[:2], *OUTPUTS[1:]]}, r"shape or dtype .*\(diff_src\)"),
        ({"results": [*OUTPUTS[:2], ZEROS[0, 0, :3]]}, r"number of channels \(diff_beta\)"),
        ({"target": FORWARD}, "there must be one array for each output"),
        ({"gamma": None}, "there must be one array for each input"),
        ({"gamma": np.int32(1)}, "gamma must be an i64"),
        ({"target": ACT_BACKWARD, "activation": None}, "must be the name of an activation"),
        ({"target": ACT_BACKWARD, "activation": np.int64(1)}, "must be the name of an activation"),
        ({"target": ACT_BACKWARD, "activation": "none"}, "must be the name of an activation"),
        ({"target": ACT_BACKWARD, "activation": "tanh"}, "must be the name of an activation"),
        ({"target": ACT_BACKWARD, "parameter": np.int64(1)}, "parameter must be an f64"),
        ({"target": ACT_BACKWARD, "parameter": np.float64(0)}, "parameter must be in the limits"),
        ({"target": ACT_BACKWARD, "parameter": np.float64("nan")}, "must be in the limits"),
        ({"target": ACT_BACKWARD, "frozen": np.int64(1)}, "frozen must be 0"),
        ({"target": ACT_BACKWARD}, "there must be one array for each input"),
        ({"target": ACT_BACKWARD, "beta": None}, r"one .* without the other \(beta\)"),
        (ONLY_RESIDUAL, r"shape or dtype .*\(residual\)"),
    ],
)  # fmt: skip
def test_invalid_calls_are_rejected(changes, message):
    """The handlers check calls that onedsl.jax never makes, and fail with an error."""
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"handler of .*BatchNorm.*{message}"):
        call(**changes)


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (1, (3, 4, 3, 8), r"shape or dtype .*\(diff_dst\)"),
        (4, (0, 8), r"number of channels \(gamma\)"),
        (4, (2, 1, 8), r"number of channels \(gamma\)"),
        (6, (1, 8), r"number of channels \(diff_gamma\)"),
    ],
)
def test_invalid_batches_are_rejected(index, shape, message):
    """The leading axis has size 2, as under vmap."""
    arrays = [np.stack([array, array]) for array in testing.random_problem((4, 3, 8))]
    arrays += [arrays[0], arrays[2], arrays[2]]
    arrays[index] = np.zeros(shape, "f4")
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(inputs=arrays[:5], results=arrays[5:])


def test_many_items_without_channels():
    """Regression: a loop over all items of the batch, which writes nothing, took hours."""
    src, statistic = np.zeros((2**40, 4, 0), "f4"), np.zeros((2**40, 0), "f4")
    changes = {"rank": np.int64(2), "channel_axis": np.int64(1)}
    inputs, results = [src, src, *[statistic] * 3], [src, statistic, statistic]
    assert [a.shape for a in call(inputs=inputs, results=results, **changes)] == [
        a.shape for a in results
    ]


def test_calls_use_the_threads_of_xla():
    problem = testing.random_problem((256, 64, 32))
    with helpers.run_records() as runs:
        for _ in range(3):
            call(inputs=problem)
    assert [run.num_threads for run in runs] == [len(os.sched_getaffinity(0))] * 3


def test_export(tmp_path):
    """One process saves programs with known and with symbolic shapes. Another one runs them."""
    pytest.importorskip("flatbuffers", reason="JAX needs it to save programs")
    for action in ("save", "run"):
        helpers.run_script("jax_export.py", action, str(tmp_path))


def test_persistent_cache(tmp_path):
    """The second process finds the compiled gradient in the cache of the first one."""
    for expected in ("0 1", "1 0"):
        child = helpers.run_script("jax_cache.py", str(tmp_path))
        assert child.stdout.strip() == expected


def test_symbolic_shapes():
    """Arguments with symbolic shapes are validated."""
    (batch,) = jax.export.symbolic_shape("b")
    src = jax.ShapeDtypeStruct((batch, 3, 8), "f4")
    with pytest.raises(ValueError, match=r"gamma must have shape \(8,\), one value"):
        jax.export.export(jax.jit(lambda s: onedsl.jax.batch_norm(s, jnp.ones(7), epsilon=1e-5)))(
            src
        )
