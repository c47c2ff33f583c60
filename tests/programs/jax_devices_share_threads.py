"""Runs calls of several devices at the same time; prints how many numbers of threads they used."""

import logging

import jax
import numpy as np

import onedsl.jax

devices = jax.local_device_count()
src = np.ones((devices, 64, 28, 28, 64), np.float32)
ones = np.ones(64, np.float32)
call = jax.pmap(lambda x: onedsl.jax.batch_norm(x, ones, ones, epsilon=1e-5)[0])
numbers = set()
logging.getLogger("onedsl").addFilter(lambda record: numbers.add(record.args[0].num_threads))
with onedsl.verbose():
    for _ in range(5):
        call(src).block_until_ready()
print(len(numbers))
