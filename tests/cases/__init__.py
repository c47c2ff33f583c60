"""Tables of what the tests run."""
