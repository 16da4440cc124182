"""The two errors of the product: the user's to mend, and something from the network that is refused."""

from enum import StrEnum


class UserError(Exception):
    """Bad input or a bad environment, which the user can mend; shown as one line, never as a traceback.

    The message says what happened, why, and what to do. Commands exit with 2.
    """


class Cause(StrEnum):
    """The causes for which a message is refused; few, so that nobody can make a count of them grow."""

    SIZE = "larger than such a message may be"
    FORM = "not a message"
    SIGNATURE = "not signed by its sender"
    SWARM = "of another swarm"
    KIND = "of another kind than belongs there"
    AUTHOR = "from a peer that may not write it"
    MEMBER = "from a peer that is no member"
    STALE = "older than what was heard"
    CONTENT = "with contents that cannot be used"


class Refused(Exception):
    """The refusal of something from the network that does not verify or does not fit.

    Whoever catches it drops the thing, counts it by its `cause` and names it in the log. The text may quote what was
    sent; a count must not be kept by it.
    """

    def __init__(self, text: str = "", cause: Cause = Cause.CONTENT) -> None:
        super().__init__(text)
        self.cause = cause
