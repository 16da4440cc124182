"""The lab: emulated and made-up networks, bounds, comparisons; and peers in homes behind NAT (`homes`)."""
