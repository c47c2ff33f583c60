"""Prints the page faults of each tensor of 2 and 3 MB, after `enable`."""

import resource

import torch

import onedsl.torch


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


onedsl.torch.enable()
found = []
for megabytes in 2, 3:
    for number in range(120):
        if number == 100:  # the first ones, up to 20, take new memory
            before = faults()
        kept = torch.ones(megabytes << 18) + 1
        del kept
    found.append((faults() - before) / 20)
print(*found)
