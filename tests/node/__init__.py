"""The node, module by module; the engine held to one process."""
