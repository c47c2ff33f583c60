"""Forks while a thread registers the kernels, and interrupts the wait. The child calls enable."""

import os
import signal
import threading

import onedsl.torch
from onedsl.torch import _enable

started, ended = threading.Event(), threading.Event()


def register():
    with _enable._lock:
        _enable._registering.append(None)
        started.set()
        ended.wait()


threading.Thread(target=register).start()
started.wait()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    onedsl.torch.enable()
    print(onedsl.torch.enabled(), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
ended.set()
