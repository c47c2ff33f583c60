"""Switches onedsl's kernels, the log and reports, also in handlers of signals during that."""

import signal

import torch

import onedsl.torch

layer = torch.nn.BatchNorm2d(3)
handled = []
running = []  # handlers


def switch(*_: object) -> None:
    with onedsl.torch.enable(), onedsl.verbose(), onedsl.torch.report(layer):
        pass
    onedsl.torch.disable()


def send_signal() -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 1e-4)


def handle(*_: object) -> None:
    handled.append(True)
    running.append(True)
    if len(running) < 4:  # on a busy machine, each handler would be interrupted by the next
        send_signal()
    switch()
    running.pop()
    send_signal()


signal.signal(signal.SIGVTALRM, handle)
send_signal()
while len(handled) < 1000:
    switch()
signal.setitimer(signal.ITIMER_VIRTUAL, 0)
assert not onedsl.torch.enabled()
with onedsl.torch.enable():
    assert onedsl.torch.enabled()
    switch()
    assert not onedsl.torch.enabled()
print(onedsl._core.subscribers())
