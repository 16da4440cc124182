"""What both sides say and agree on, module by module."""
