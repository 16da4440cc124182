"""Tests of the lab: emulated and made-up networks, bounds, comparisons; peers in homes behind NAT (`homes`)."""
