"""`onedsl.verbose`: runs are logged within its scope only, and stdout is left alone."""

import logging
from concurrent.futures import ThreadPoolExecutor

import helpers
import numpy as np
import pytest

import onedsl
from onedsl import _core
from onedsl.runtime import onednn, run_log


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "onedsl")
    return caplog


def call(backend="auto"):
    x, c = np.ones((4, 5, 6, 16), np.float32), np.ones(16, np.float32)
    onedsl.BatchNormTrainingBackward(1e-5)(x, x, c, c, c, backend=backend)


def messages(log):
    assert all(record.levelno == logging.INFO for record in log.records)
    return [record.getMessage() for record in log.records]


def test_the_words_of_the_log(says):
    run = "ReLU", "f32", (4, 16, 1), ("src", "mean"), ("dst",), "a kernel", 2, 1.5e-3
    copied = ("src", "dst")
    for members in run, (*run[:4], (), *run[5:]), (*run, copied):
        says(str(run_log.RunRecord(*members)))
    says(str(run_log.CallRecord("forward", None, "small inputs", (4, 16), [], 0, [])))


def test_logging_is_configured_after_the_import():
    """Regression: logging.config disables loggers that exist. A closed stderr was an error."""
    code = """
import logging.config, sys
import numpy as np, onedsl

op, ones = onedsl.BatchNormTrainingBackward(1e-5), np.ones((4, 16), np.float32)
handlers = {"to stdout": {"class": "logging.StreamHandler", "stream": sys.stdout}}
config = {"version": 1, "handlers": handlers, "root": {"handlers": [*handlers]}}
for each in {"version": 1}, config:
    logging.config.dictConfig(each)
    op(ones, ones, ones[0], ones[0])
logging.config.dictConfig({"version": 1, "root": {"handlers": []}})
sys.stderr.close()
op(ones, ones, ones[0], ones[0])
"""
    child = helpers.run_child(code, environment={"ONEDSL_VERBOSE": "1"})
    for stream in child.stdout, child.stderr:
        assert stream.startswith("BatchNormTrainingBackward f32 4x16x1 ")
        assert len(stream.splitlines()) == 1


def test_nested_scopes_log_once(log):
    with onedsl.verbose():
        with onedsl.verbose():
            call()
        assert len(messages(log)) == 1
        scope = onedsl.verbose()
    call()
    assert len(messages(log)) == 2
    scope.close()
    call()
    assert len(messages(log)) == 2


x4, empty = (np.ones((batch, 3, 4, 5), np.float32) for batch in (2, 0))
c4, c1 = np.ones((1, 3, 1, 1), np.float32), np.ones(5, np.float32)
backward, forward = (
    cls(1e-5) for cls in (onedsl.BatchNormTrainingBackward, onedsl.BatchNormForwardTraining)
)
backprop, frozen = onedsl.BatchNormTrainingBackprop(1e-5), onedsl.BatchNormalizationGrad(1e-5)
sums = backward.reduce(x4, x4, c1, c1)
written = backward.graph(onedsl.TensorSpec(x4.shape)).compile()

SIZES = "24x5x1 (outer x channels x inner),"
PORTS = "src diff_dst mean variance gamma -> diff_src diff_gamma diff_beta:"
GRAD = (
    "BatchNormalizationGrad f32 2x3x20 (outer x channels x inner), input input_gradient mean "
    "variance scale -> output_gradient output_scale_gradient output_bias_gradient:"
)
KERNEL = f"onedsl two-pass kernel, {_core.native_isa()}, "
ONEDNN = f"oneDNN {'.'.join(map(str, onednn.version()))} "


WRITTEN = f"{ONEDNN}BatchNormTrainingBackward, {onednn.cpu_isa()}, as written"
FEWER = "input_forward output_delta mean variance -> input_delta:"
BACKWARD = f"TrainingBackward f32 {SIZES}"
# What begins a line, after the first words of the operator, and a call.
RUNS = [
    (f"{BACKWARD} {PORTS} {KERNEL}", lambda: backward(x4, x4, c1, c1, c1)),
    (f"{BACKWARD} {PORTS} {ONEDNN}", lambda: backward(x4, x4, c1, c1, c1, backend="onednn")),
    (
        f"{BACKWARD.replace('24', '0')} {PORTS} {KERNEL}",
        lambda: backward(empty, empty, c1, c1, c1, backend="onednn"),
    ),
    (
        f"{BACKWARD} {PORTS} {WRITTEN}",
        lambda: written(src=x4, diff_dst=x4, mean=c1, variance=c1, gamma=c1),
    ),
    (
        f"TrainingBackprop f32 {SIZES} {FEWER} {KERNEL}",
        lambda: backprop(x4, x4, c1, c1, outputs="input_delta"),
    ),
    (f"{GRAD} {KERNEL}", lambda: frozen(x4, x4, c4, c4, c4)),
    (
        f"{BACKWARD} src diff_dst mean variance -> sums: onedsl first pass",
        lambda: backward.reduce(x4, x4, c1, c1),
    ),
    (f"ForwardTraining f32 {SIZES} src -> sums: onedsl first pass", lambda: forward.reduce(x4)),
    (f"{BACKWARD} {PORTS} onedsl second pass", lambda: backward.apply(sums, x4, x4, c1, c1, c1)),
]


@pytest.mark.parametrize(("begin", "run"), RUNS)
def test_every_run_is_one_line(log, capfd, run, begin):
    """Regression: all gradients were logged as BatchNormTrainingBackward."""
    with onedsl.verbose():
        run()
    (line,) = messages(log)
    assert line.removeprefix("BatchNorm").startswith(begin.removeprefix("BatchNorm"))
    assert line.endswith(" us")
    assert "".join(capfd.readouterr()) == ""


def test_an_error_ends_the_scope(log):
    with pytest.raises(ValueError, match="backend"), onedsl.verbose():
        call("none")
    call()
    assert log.records == []


def test_an_interrupt_leaves_logging_off():
    """Regression: the number of subscribers and their list were changed one after the other."""

    def subscribe():
        with run_log.subscribe(print) as subscription:
            assert _core.subscribers() == [print]
        subscription.close()

    for function, interrupted in (
        (lambda: onedsl.verbose().close(), helpers.before_last_line(onedsl.verbose)),
        (subscribe, lambda frame: frame.f_code is subscribe.__code__),
    ):
        left = [_core.subscribers() for _ in helpers.interruptions(function, interrupted)]
        assert len(left) > 5
        assert not any(left)


def test_runs_are_recorded_while_there_are_subscriptions():
    """The C++ core counts them: closed ones once, and those that were deleted."""
    records = []
    _core.set_run_log(lambda *members: records.append(members), print)

    def recorded():
        records.clear()
        call()
        return bool(records)

    try:
        first, second = (run_log.subscribe(print) for _ in range(2))
        first.close()
        first.close()
        assert recorded()
        del first
        assert recorded()
        del second
        assert not recorded()
        with run_log.subscribe(print):
            assert recorded()
        assert not recorded()
    finally:
        _core.set_run_log(run_log.record_run, run_log.record_call)


def test_a_scope_that_is_not_kept():
    """Logging is on until the scope is closed."""
    child = helpers.run_child("import onedsl; onedsl.verbose(); print(onedsl._core.subscribers())")
    assert "_log" in child.stdout


CALL = """
import numpy as np, onedsl
x, c = np.ones((4, 16), np.float32), np.ones(16, np.float32)
onedsl.BatchNormTrainingBackward(1e-5)(x, x, c, c, c)
"""
# The variable is read at the import. A worker of a program inherits it.
VALUES = f"""
import os, subprocess, sys
for value in sys.argv[1:]:
    print(value, file=sys.stderr, flush=True)
    if os.fork() == 0:
        os.environ["ONEDSL_VERBOSE"] = value
        import onedsl
        exec({CALL!r})
        os._exit(0)
    os.wait()
os.environ["ONEDSL_VERBOSE"] = "1"
subprocess.run([sys.executable, "-c", {CALL!r}], check=True)
"""


def test_the_environment_variable():
    """Any other value than 1 has no effect."""
    values = "", "0", "true", "1 ", "1"
    child = helpers.run_child(VALUES, arguments=values)
    assert child.stdout == ""
    *given, first, of_worker = child.stderr.splitlines()
    assert given == [*values]
    for line in first, of_worker:
        assert line.startswith("BatchNormTrainingBackward f32 4x16x1")


def test_many_threads(log):
    with onedsl.verbose(), ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: call("onednn"), range(80)))
    assert len(messages(log)) == 80


PROGRAM = """
import ctypes, numpy as np, onedsl
op = onedsl.BatchNormTrainingBackward(1e-5)
x, c = np.ones((4, 16), np.float32), np.ones(16, np.float32)
with onedsl.verbose():
    op(x, x, c, c, c, backend="onednn")
op(x, x, c, c, c, backend="onednn")
ctypes.CDLL(None).puts(b"end")
"""


@pytest.mark.parametrize(("onednn_verbose", "lines"), [("", 0), ("1", 2)])
def test_a_program_without_logging(onednn_verbose, lines):
    """The record goes to stderr; ONEDNN_VERBOSE alone decides what oneDNN prints to stdout."""
    child = helpers.run_python("-c", PROGRAM, environment={"ONEDNN_VERBOSE": onednn_verbose})
    (line,) = child.stderr.splitlines()
    assert line.startswith("BatchNormTrainingBackward f32")
    assert child.stdout.count(",exec,cpu,batch_normalization,") == lines
    assert child.stdout.endswith("end\n")


def test_a_program_that_disables_logging():
    child = helpers.run_child(f"""
import logging
logging.disable(logging.INFO)
{PROGRAM}
logging.disable(logging.NOTSET)
logging.getLogger("onedsl").addFilter(lambda record: False)
{PROGRAM}
""")
    assert child.stderr == ""
