"""The version of the loaded oneDNN."""

from __future__ import annotations

from . import onednn


def version_text(version: tuple[int, ...]) -> str:
    """Return a version with dots."""
    return ".".join(map(str, version))


def onednn_version() -> str:
    """Return the version of the loaded oneDNN."""
    return version_text(onednn.version())
