"""Forms in which training keeps a parameter's tensors: an update takes them as fp32, and gives them back."""

from typing import NamedTuple, Protocol

import torch


class KeptForm(Protocol):
    """A tensor of a parameter, of its number of values, flat, in the form in which it is kept."""

    def widened(self, first: int, end: int, room: torch.Tensor) -> torch.Tensor:
        """Return the values `[first, end)`, fp32 [end - first]: those that are kept themselves, or a copy in `room`.

        Args:
            first: a multiple of `state_slots.MOMENT_BLOCK`; so is `end`, unless it is the tensor's.
            room: fp32 as the result is, whose contents do not matter.
        """

    def keep(self, first: int, end: int, values: torch.Tensor) -> None:
        """Keep what an update has made of the values that `widened` gave; a copy is of no use after that."""


class FromPlace(NamedTuple):
    """A run of a parameter's tensor."""

    form: KeptForm
    """The run, as if it were all of the tensor."""
    place: int
    """The parameter's value with which it begins."""

    def widened(self, first: int, end: int, room: torch.Tensor) -> torch.Tensor:
        """Return the values by their places in the parameter, as `KeptForm.widened`."""
        return self.form.widened(first - self.place, end - self.place, room)

    def keep(self, first: int, end: int, values: torch.Tensor) -> None:
        """Keep them, as `KeptForm.keep`."""
        self.form.keep(first - self.place, end - self.place, values)


class AsFp32(NamedTuple):
    """A tensor that is kept in fp32 [elements]: updated where it lies."""

    values: torch.Tensor

    def widened(self, first: int, end: int, room: torch.Tensor) -> torch.Tensor:
        """Return the values themselves, as `KeptForm.widened`."""
        return self.values[first:end]

    def keep(self, first: int, end: int, values: torch.Tensor) -> None:
        """Leave them where they are, as `KeptForm.keep`."""
