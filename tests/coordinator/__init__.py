"""The coordinator, module by module; the allocator held to closed forms and exhaustive search."""
