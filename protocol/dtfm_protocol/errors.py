"""Errors that are the user's to mend: shown as one line, never as a traceback."""


class UserError(Exception):
    """Bad input or environment. The message is one line: what happened, why, what to do. Commands exit with 2."""


class Refused(Exception):
    """Something from the network that does not verify or does not fit; it is dropped, counted and named in the log."""
