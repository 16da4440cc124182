"""Boards for experiments, to which each step's metrics are written.

- `board_feed`: feed of a run's metrics to boards, as they come onto the disk
- `opened_boards`: opening of the boards that an owner asks for
- `tensorboard_log`: log of a run for TensorBoard
- `wandb_log`: log of a run for Weights & Biases, kept on this machine
"""
