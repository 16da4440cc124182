"""Opening of the boards that an owner asks for."""

from pathlib import Path

from dtfm_coordinator.serve.boards.board_feed import Board, BoardOptions
from dtfm_coordinator.serve.boards.tensorboard_log import TensorBoardLog
from dtfm_coordinator.serve.boards.wandb_log import WandbLog


def open_boards(options: BoardOptions, folder: Path, swarm: str, name: str) -> list[Board]:
    """Begin the logs that are asked for.

    Args:
        folder: the state folder.
        swarm: the swarm's id.
        name: the job's name.

    Raises:
        UserError: one cannot begin.
    """
    boards: list[Board] = []
    if options.tensorboard is not None:
        boards.append(TensorBoardLog(options.tensorboard / name))
    if options.wandb is not None:
        boards.append(WandbLog(folder, options.wandb, swarm, name))
    return boards
