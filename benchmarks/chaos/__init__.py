"""Swarms to which things happen."""
