"""Forks while a thread holds a ForkLock; an exception may end the wait of the fork."""

import os
import signal
import threading

from onedsl.runtime.fork_lock import ForkLock

abandoned = []
lock = ForkLock(lambda: abandoned.append(True))
held, released = threading.Event(), threading.Event()


def hold():
    with lock:
        held.set()
        released.wait()


def fork():
    """Fork, and print what happened to the lock in the child, and whether the parent has it."""
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        with lock:
            print(abandoned, flush=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)


with lock:  # by the thread that forks
    fork()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
fork()
released.set()
thread.join()
with lock:
    fork()
