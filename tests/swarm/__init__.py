"""Tests of whole swarms of processes: training, faults, deployment, the doctor, and bad input."""
