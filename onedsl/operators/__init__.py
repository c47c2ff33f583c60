"""The operators: one file a class, over what they share.

`_schema` says what a class is made of, `_operator` how it runs and `_compiled` what it compiles
to. A new class is a new file here: its ports as a `OpSchema`, its result, and its two calls.
"""
