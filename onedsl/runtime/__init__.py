"""The run log, text of unknown origin, and errors."""
