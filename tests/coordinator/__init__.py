"""Tests of the coordinator; the allocator is held to closed forms and exhaustive search."""
