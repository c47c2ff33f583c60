"""`onedsl.verbose`: what ran is logged, with oneDNN's lines, and nothing outside of its scope."""

from __future__ import annotations

import logging
import threading

import helpers
import numpy as np
import pytest

import onedsl
from onedsl import _core


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "onedsl")
    return caplog


def call(backend="native", shape=(4, 5, 6, 16), **options):
    op = onedsl.BatchNormTrainingBackward(1e-5)
    x, c = np.ones(shape, np.float32), np.ones(shape[-1], np.float32)
    return op(x, x, c, c, c, backend=backend, **options)


def messages(log, level):
    return [record.getMessage() for record in log.records if record.levelno == level]


def test_own_kernels(log):
    with onedsl.verbose():
        call()
    (line,) = messages(log, logging.INFO)
    assert line.startswith("BatchNormTrainingBackward f32 120x16x1 (outer x channels x inner): ")
    assert f"onedsl two-pass kernel, {_core.native_isa()}" in line
    assert line.endswith(" us")
    assert messages(log, logging.DEBUG) == []


def test_onednns_lines_are_captured(log, capfd):
    call("onednn")
    with onedsl.verbose():
        call("onednn")
    call("onednn")
    (line,) = messages(log, logging.INFO)
    printed = messages(log, logging.DEBUG)
    (run,) = [text for text in printed if ",exec,cpu,batch_normalization," in text]
    kernel = run.split("batch_normalization,")[1].split(",")[0]
    assert f", {kernel}, " in line
    assert "bnorm" in kernel
    out, err = capfd.readouterr()
    assert "onednn" not in out + err


def test_nothing_is_told_outside(log):
    with onedsl.verbose():
        pass
    call()
    assert log.records == []


def test_compiled_operators_tell_too(log):
    compiled = onedsl.BatchNormTrainingBackward(1e-5).compile(onedsl.TensorSpec((4, 8)))
    x, c = np.ones((4, 8), np.float32), np.ones(8, np.float32)
    with onedsl.verbose():
        compiled(x, x, c, c, c)
    (line,) = messages(log, logging.INFO)
    assert "4x8x1" in line


def test_scopes_within_each_other(log):
    with onedsl.verbose():
        with onedsl.verbose():
            call()
        assert len(messages(log, logging.INFO)) == 2
        call()
    assert len(messages(log, logging.INFO)) == 3
    call()
    assert len(messages(log, logging.INFO)) == 3


def test_an_error_ends_the_scope(log):
    with pytest.raises(ValueError, match="backend"), onedsl.verbose():
        call("none")
    call()
    assert log.records == []


def test_many_threads(log):
    def many():
        for _ in range(20):
            call("onednn")

    threads = [threading.Thread(target=many) for _ in range(4)]
    with onedsl.verbose():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(messages(log, logging.INFO)) == 80
    assert sum(",exec,cpu,batch_norm" in text for text in messages(log, logging.DEBUG)) == 80


PROGRAM = """
import ctypes, numpy as np, onedsl
op = onedsl.BatchNormTrainingBackward(1e-5)
x, c = np.ones((4, 16), np.float32), np.ones(16, np.float32)
ctypes.CDLL(None).puts(b"before")
with onedsl.verbose():
    ctypes.CDLL(None).puts(b"within")
    op(x, x, c, c, c, backend="onednn")
    print("python", flush=True)
op(x, x, c, c, c, backend="onednn")
ctypes.CDLL(None).puts(b"after")
"""


def test_a_program_without_logging_sees_it_on_stderr():
    child = helpers.run_python("-c", PROGRAM, environment={"ONEDNN_VERBOSE": ""})
    assert child.returncode == 0, child.stderr
    (line,) = child.stderr.splitlines()
    assert line.startswith("BatchNormTrainingBackward f32")
    assert child.stdout.split() == ["before", "within", "python", "after"]


def test_the_users_own_variable_stays():
    child = helpers.run_python("-c", PROGRAM, environment={"ONEDNN_VERBOSE": "1"})
    assert child.returncode == 0, child.stderr
    assert child.stdout.count(",exec,cpu,batch_normalization,") == 1, "that after the scope"
    assert "bnorm" in child.stderr


def test_a_child_of_a_fork_keeps_its_stdout():
    program = """
import os, threading, numpy as np, onedsl
op = onedsl.BatchNormTrainingBackward(1e-5)
x, c = np.ones((64, 64, 16), np.float32), np.ones(16, np.float32)
stop = False
def many():
    while not stop:
        op(x, x, c, c, c, backend="onednn")
import logging; logging.getLogger("onedsl").addHandler(logging.NullHandler())
with onedsl.verbose():
    thread = threading.Thread(target=many)
    thread.start()
    for i in range(50):
        child = os.fork()
        if child == 0:
            os.write(1, b"child\\n")
            os._exit(0)
        os.waitpid(child, 0)
    stop = True
    thread.join()
"""
    child = helpers.run_python("-W", "ignore::DeprecationWarning", "-c", program)
    assert child.returncode == 0, child.stderr
    assert child.stdout.count("child\n") == 50
