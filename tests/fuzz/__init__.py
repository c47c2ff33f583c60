"""A fuzzer of the operators: `python tests/fuzz --help`."""
