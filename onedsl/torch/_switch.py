"""The environment variable that switches `enable` and the backend "onedsl" off."""

from __future__ import annotations

import os

from .. import _core

VARIABLE = "ONEDSL_DISABLE"


def is_off() -> bool:
    """Return whether the environment switches onedsl off for models of PyTorch."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def ended_use() -> _core.TorchUse:
    """Return a use of onedsl's kernels that has ended."""
    use = _core.begin_torch_use()
    use.close()
    return use
