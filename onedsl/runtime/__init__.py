"""Capabilities, the plan cache, the run log, timing, and errors."""
