"""Consent to take part in a swarm: asked for once, before anything is made or sent, and kept in the state folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from dtfm_node.commands.terms import Terms
from dtfm_node.commands.yes_no_question import agreed
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema

CONSENT = "consent.json"
TERMS_VERSION = 1
"""Version of the terms; it grows when they come to say more, and then everybody is asked again."""


class _Given(Schema):
    """The consents that were given with a state folder."""

    terms: int = TERMS_VERSION
    swarms: Annotated[tuple[str, ...], Field(max_length=1024)] = ()


class Consent:
    """The consent to one swarm, in one state folder."""

    def __init__(self, folder: Path, swarm: str) -> None:
        """Nothing is read or written yet; `swarm` is the swarm's id."""
        self._path, self._swarm = folder / CONSENT, swarm

    def obtain(self, terms: Callable[[], Terms]) -> bool:
        """Return whether the person agrees, or has agreed before; whoever has not yet is shown the terms and asked.

        Raises:
            UserError: there is no terminal to ask at.
            KeyboardInterrupt: Ctrl+C was the answer.
        """
        if self._swarm in self._given().swarms:
            return True
        nobody = (
            f"nobody has agreed yet that this machine takes part in the swarm {self._swarm}, and this is no terminal "
            "to ask at: give --yes to agree (join at a terminal, or docs/how-to/join.md, says to what)"
        )
        return agreed(terms().screen(), "Take part?", nobody, "not joined: nothing was kept, and nothing sent")

    def keep(self) -> None:
        """Remember the consent in the state folder, which is there.

        Raises:
            UserError: it cannot be written.
        """
        given = self._given()
        if self._swarm not in given.swarms:
            given = _Given(swarms=(*given.swarms, self._swarm))
            write_atomically(self._path, given.model_dump_json(), private=True)

    def _given(self) -> _Given:
        try:
            given = _Given.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return _Given()
        return given if given.terms == TERMS_VERSION else _Given()
