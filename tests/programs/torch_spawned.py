"""Prints whether onedsl is enabled in processes. With an argument, the script enables it."""

import multiprocessing
import sys


def enabled(_):
    import onedsl.torch

    return onedsl.torch.enabled()


if sys.argv[1:]:
    import onedsl.torch

    onedsl.torch.enable()
if __name__ == "__main__":
    for method in "fork", "spawn":
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(*pool.map(enabled, [0]))
