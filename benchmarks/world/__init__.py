"""The emulated world: what a plan promises, measured on real processes and real bytes."""
