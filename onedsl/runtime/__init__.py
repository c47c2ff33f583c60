"""What the extensions need from Python: exceptions, the run log, the import of `_onednn`."""
