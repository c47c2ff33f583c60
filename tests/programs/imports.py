"""Prints the modules that onedsl imports and NumPy does not."""

import sys

import numpy  # noqa: F401

before = set(sys.modules)

import onedsl  # noqa: E402, F401

print(*sorted(set(sys.modules) - before))
