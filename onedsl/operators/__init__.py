"""The operator classes, one file each, and what they share.

A new class is a new file here: an `OpSchema`, a result, the operator and what it compiles to.
"""
