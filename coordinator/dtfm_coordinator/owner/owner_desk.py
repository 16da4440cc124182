"""Desk of a running coordinator for its owner's wishes: reads them as they are written, and answers them."""

import time
from collections.abc import Callable

from dtfm_coordinator.owner.owner_wishes import (
    TEXT_LIMIT,
    Cancelled,
    OwnerRecord,
    OwnerWishes,
    Wish,
    WishAnswer,
)
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.swarm.overview.owner_words import sentence
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log


class OwnerDesk:
    """Desk at which the owner's wishes come in."""

    def __init__(self, file: WishFile, clock: Callable[[], float] = time.time) -> None:
        """Take the wishes that `file` has.

        Args:
            clock: gives Unix seconds.
        """
        self._file, self._clock = file, clock
        self._unwritten: list[WishAnswer] = []

    @property
    def wishes(self) -> OwnerWishes:
        """All that the owner has asked for so far."""
        return self._file.wishes

    def look(self) -> None:
        """Take up what was written since the last time; answer what later wishes have overtaken, or taken back."""
        self._exchange()
        back, cancels = self.wishes.taken_back(), self.wishes.open(Cancelled)
        for wish, why in self.wishes.overtaken():
            self.answer(wish, why, done=False)
        for wish in cancels:
            words = ", ".join(dict.fromkeys(one.word for one in back))
            text = f"taken back: {words}" if back else "nothing was asked for that is not done yet"
            self.answer(wish, text, done=bool(back))

    def answer(self, wish: Wish, text: str, *, done: bool = True) -> None:
        """Answer a wish, which counts from now on; it is on the disk as soon as there is room.

        Args:
            text: what was done, or why nothing was, in one line for people.
            done: whether it was carried out.
        """
        answer = WishAnswer(at=self._clock(), to=wish.number, done=done, text=text[:TEXT_LIMIT])
        self.wishes.add(answer)
        self._unwritten.append(answer)
        log.info("You asked for: %s. %s", wish.word, sentence(text))
        self._exchange()

    def _exchange(self) -> None:
        """Write what was answered, and read what was written."""
        try:
            while self._unwritten:  # the disk was full
                self._file.add(self._unwritten[0])
                del self._unwritten[0]
            self._file.take_up()
        except UserError as error:
            log.warning("%s", error)

    def answer_all(self, kind: type[OwnerRecord], text: str, *, done: bool = True) -> None:
        """Answer all open wishes of a kind."""
        for wish in self.wishes.open(kind):
            self.answer(wish, text, done=done)
