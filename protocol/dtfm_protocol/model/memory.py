"""What a parameter costs whoever trains it. Apart from `sizes`, so that planning alone need not load torch."""

BYTES_PER_PARAMETER = 16
"""The fp32 weight, its gradient, and AdamW's two moments."""
