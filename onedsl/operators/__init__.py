"""The operator classes, one file each, and the code that they share.

The file of a class defines its `OpSchema`, result and operator.
"""
