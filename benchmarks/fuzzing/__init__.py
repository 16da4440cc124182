"""Fuzzing of every parser that bytes from others reach: `python -m benchmarks.fuzzing`."""
