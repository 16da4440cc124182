"""Reading of a state while training goes on: tensor by tensor, and no update comes in between."""

from collections.abc import Callable, Mapping
from threading import Condition

import torch

COPY_BYTES = 64 << 20
"""Bytes of a state that is being written, at most, that an update copies instead of waiting until they are written."""


class Abandoned(Exception):
    """Error: a reading was given up before all of the state was read."""


class Reading:
    """One reading of a state, tensor by tensor, while training goes on: an update waits for it, or copies the little
    that is left.

    Between two updates weights and moments do not change, so that reading them needs no copy. A reading that breaks
    off, for whatever reason, holds no update back.

    Args:
        tensors: tensors of the state, by key.
        copy_bytes: bytes of it, at most, that an update copies instead of waiting.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], copy_bytes: int = COPY_BYTES) -> None:
        self._left = dict(tensors)
        self._copy_bytes = copy_bytes
        self._abandoned = False
        self._progress = Condition()

    def visit(self, look: Callable[[str, torch.Tensor], None]) -> None:
        """Call `look` with every tensor, in order.

        Raises:
            Abandoned: the reading was given up, before or meanwhile.
        """
        try:
            while self._visit_next(look):
                pass
        except BaseException:
            self.abandon()
            raise

    def _visit_next(self, look: Callable[[str, torch.Tensor], None]) -> bool:
        with self._progress:
            if self._abandoned:
                raise Abandoned
            if not self._left:
                return False
            key = next(iter(self._left))
            look(key, self._left[key])
            del self._left[key]
            self._progress.notify_all()
            return True

    def abandon(self) -> None:
        """Read no further: from now on the tensors may change. Waits for the tensor that is being read."""
        with self._progress:
            self._abandoned = self._abandoned or bool(self._left)
            self._left.clear()
            self._progress.notify_all()

    def settle(self) -> None:
        """Wait until the tensors may change; copy those that are not read yet, if they are few."""
        with self._progress:
            self._progress.wait_for(lambda: sum(one.nbytes for one in self._left.values()) <= self._copy_bytes)
            self._left = {key: tensor.clone() for key, tensor in self._left.items()}
