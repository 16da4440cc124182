"""What a stage costs whoever trains it. Apart from `sizes`, so that planning alone need not load torch."""

BYTES_PER_PARAMETER = 16
"""The fp32 weight, its gradient, and AdamW's two moments."""
FEEDBACK_BYTES_PER_PARAMETER = 4
"""What int8 left out of the last all-reduce, in fp32."""
BOUNDARY_BYTES_PER_VALUE = 4
"""Of the activations between two layers, and their gradients: the residual stream is fp32 in either precision."""
MESSAGES_RECEIVED_AHEAD = 2
"""Boundary messages for which a peer of more than one stage has room beside those in flight."""
