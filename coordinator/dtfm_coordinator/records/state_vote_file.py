"""File of the votes on states that a coordinator has heard: one JSON object a line, so that a restart forgets none."""

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from dtfm_coordinator.records.state_votes import ReplicasOf, StateVotes
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.plan.state_vote import StateVote
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically

NAME = "state_votes.jsonl"
MOST_LINES = 4096
"""Lines of the file at which it is written anew, without the votes that are forgotten; twice as many as there are votes
where that is more."""
SAID_LIMIT = 1000
"""Texts of the log that are remembered, so that each is logged once."""


class StateVoteFile:
    """Votes on states, in memory and in a coordinator's state folder.

    Args:
        folder: the state folder.
        swarm: the swarm's id, for which the votes are signed.
        most_lines: see `MOST_LINES`.
    """

    def __init__(self, folder: Path, swarm: str, most_lines: int = MOST_LINES) -> None:
        self._path, self._swarm, self._most_lines = folder / NAME, swarm, most_lines
        self._lines, self._is_torn = 0, False
        """Lines of the file, and whether a writer was cut off in the last one: the next must not be joined to that."""
        self._said: set[str] = set()
        self.votes = StateVotes()
        """All that is known."""
        self._read()

    def hear(self, votes: Iterable[StateVote], replicas_of: ReplicasOf) -> list[StateVote]:
        """Take votes from a report or with a checkpoint's share, whoever brings them: each has its voter's signature.
        Where one is false, those that come with it are not looked at. Return those that are news."""
        taken: list[StateVote] = []
        for vote in votes:
            if self.votes.wants(vote, replicas_of):
                if not self._is_signed(vote):
                    break
                self.votes.hear(vote)
                taken.append(vote)
        if not taken:
            return taken
        try:
            if self._is_torn or self._lines + len(taken) > max(self._most_lines, 2 * sum(1 for _ in self.votes)):
                self._rewrite()
            else:
                self._append(taken)
        except (OSError, UserError) as error:
            log.warning("votes on states could not be written down: %s", error)
        return taken

    def say(self, text: str) -> None:
        """Log what is to be known of votes, once."""
        if text not in self._said:
            if len(self._said) >= SAID_LIMIT:
                self._said.clear()
            self._said.add(text)
            log.warning("%s", text)

    def _is_signed(self, vote: StateVote) -> bool:
        try:
            vote.check(self._swarm)
        except Refused as error:
            self.say(f"a vote on a state is not taken: {error}")
            return False
        return True

    def _read(self) -> None:
        """Read what an earlier process has written. A line that was cut off, or is none of these, is left out."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}") from None
        lines = data.splitlines()
        self._lines, self._is_torn = len(lines), not data.endswith(b"\n")
        for line in lines:
            try:
                vote = StateVote.model_validate_json(line)
            except ValidationError:
                continue
            self.votes.hear(vote)  # it was wanted, and was checked, before it was written

    def _append(self, votes: list[StateVote]) -> None:
        lines = "".join(f"{vote.model_dump_json()}\n" for vote in votes).encode()
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(lines)
        self._lines += len(votes)

    def _rewrite(self) -> None:
        lines = [f"{vote.model_dump_json()}\n" for vote in self.votes]
        write_atomically(self._path, "".join(lines))
        self._lines, self._is_torn = len(lines), False
