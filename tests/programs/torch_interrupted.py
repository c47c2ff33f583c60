"""Interrupts calls under onedsl.torch.enable(). Each interrupt must raise KeyboardInterrupt."""

import contextlib
import logging
import signal

import torch

import onedsl
import onedsl.torch

torch.set_num_threads(1)
logging.basicConfig(handlers=[logging.NullHandler()])
signal.signal(signal.SIGALRM, signal.default_int_handler)
# Python has no handler where the parent process ignores SIGINT, as background jobs of a shell do.
signal.signal(signal.SIGINT, signal.default_int_handler)
f32, f64 = torch.randn(2, 3, 4), torch.randn(2, 3, 4, dtype=torch.float64)

for log in contextlib.nullcontext, onedsl.verbose:
    with onedsl.torch.enable(huge_pages=False), log():
        for i in range(100):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-3 + i * 1e-6)
                while True:
                    for src in f64, f32:
                        torch.native_batch_norm(src, None, None, None, None, True, 0.1, 1e-5)
