"""The two errors of the product: the user's to mend, and something from the network that is refused."""


class UserError(Exception):
    """Bad input or a bad environment, which the user can mend; shown as one line, never as a traceback.

    The message says what happened, why, and what to do. Commands exit with 2.
    """


class Refused(Exception):
    """The refusal of something from the network that does not verify or does not fit.

    Whoever catches it drops the thing, counts it and names it in the log.
    """
