"""Tests of the node; the engine is held to one process."""
