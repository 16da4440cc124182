"""An emulated network on one machine: hosts with delays and rates between them, for real processes and real bytes."""
