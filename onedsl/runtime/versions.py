"""The version of the loaded oneDNN."""

from __future__ import annotations

from .. import _core


def onednn_version() -> str:
    """Return the version of the loaded oneDNN."""
    return ".".join(map(str, _core.onednn_version()))
