"""Forks before and after the first call, with a oneDNN of SYCL. Prints what the children raise."""

import os
import warnings

import onedsl
from onedsl import testing

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads running
problem = testing.random_problem((16, 5))
op = onedsl.BatchNormTrainingBackward(1e-5)


def fork(*acts):
    if os.fork() == 0:
        for act in acts:
            try:
                act()
                print("works", flush=True)
            except onedsl.OneDNNError as error:
                print(error.status, error, flush=True)
        os._exit(0)
    os.wait()


def call():
    op(*problem, backend="onednn")


graph = op.graph(onedsl.TensorSpec((16, 5))).repaired()  # loads oneDNN, and uses no engine
fork(call)
call()
kept = graph.compile()
fork(call, lambda: kept(**problem._asdict()), onedsl.capabilities, lambda: op(*problem))
call()
