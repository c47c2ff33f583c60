"""Scripts of many kinds, which ``--compare`` times. Without arguments, runs each in a process.

Prints what was found, as JSON: for each kind the exit status and, if the file was written, the
number of steps and whether the run is complete. Command line otherwise: the kind to run.
"""

import atexit
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch
from torch import nn

KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def make():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer):
    model(torch.randn(2, 3, 4, 4)).sum().backward()
    optimizer.step()


def train(steps=10**9):
    model, optimizer = make()
    for _ in range(steps):
        step(model, optimizer)


@kind
def for_seconds():
    train()


@kind
def for_steps():
    train()


@kind
def ends_before():
    train(20)


@kind
def too_few_steps():
    train(4)


@kind
def no_optimizer():
    make()


@kind
def folds_of_three_steps():
    while True:
        train(3)


@kind
def an_optimizer_for_each_step():
    while True:
        train(1)


@kind
def a_phase_before():
    train(3)
    train()


@kind
def two_optimizers():
    first, second = make(), make()
    while True:
        step(*first)
        step(*second)


@kind
def threads():
    for _ in range(4):
        threading.Thread(target=train).start()


@kind
def a_thread_and_the_main_thread():
    threading.Thread(target=train).start()
    train()


@kind
def a_signal_handler():
    made = make()

    def handler(*_):
        with torch.enable_grad():  # optimizers switch it off during their steps
            step(*made)
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    signal.signal(signal.SIGALRM, handler)
    handler()
    train()


@kind
def another_exit_status():
    try:
        train()
    except SystemExit:
        sys.exit(3)


@kind
def a_finally_that_raises():
    try:
        train()
    finally:
        raise RuntimeError


@kind
def catches_all():
    while True:
        with contextlib.suppress(BaseException):
            train()


@kind
def an_exception():
    train(20)
    raise ValueError


@kind
def ends_without_handlers():
    train(20)
    os._exit(0)


@kind
def ends_in_a_handler():
    atexit.register(os._exit, 0)
    train(20)


@kind
def becomes_another_program():
    os.execv(sys.executable, [sys.executable, *sys.argv])


@kind
def becomes_another_program_later():
    train(20)
    os.execlp("sleep", "sleep", "1000")


@kind
def a_forked_process_trains():
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()


@kind
def a_forked_process_ends():
    if os.fork() == 0:
        os._exit(3)
    os.wait()
    train()


@kind
def programs():
    while True:
        subprocess.run(["true"], check=True)
        os.spawnlp(os.P_WAIT, "true", "true")
        train(3)


def run(name):
    """Run a kind as ``--compare`` does, in a forked process that ends after a minute."""
    file = Path(folder, name)
    process = os.fork()
    if process == 0:
        signal.alarm(60)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        limits = ("0.1", "inf") if name == "for_seconds" else ("inf", "25")
        sys.argv = ["", "--measure", str(file), *limits, __file__, name]
        main()
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    found = read_run(file) if file.exists() else None
    return status, found and (found.steps, found.is_complete)


if __name__ == "__main__":
    if sys.argv[1:]:
        KINDS[sys.argv[1]]()
    else:
        import torch._dynamo  # each optimizer imports it, here before the forks

        from onedsl.torch.__main__ import main
        from onedsl.torch._step_timer import read_run

        folder = tempfile.mkdtemp()
        print(json.dumps({name: run(name) for name in KINDS}))
