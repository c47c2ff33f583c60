"""Arrays of any library as NumPy views, dtypes, data formats and `TensorSpec`."""
