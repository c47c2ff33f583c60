"""The run log, timing, and errors."""
