"""A question to the person at the terminal, answered with yes or no."""

import sys

from dtfm_protocol.errors import UserError


def agreed(words: str, question: str, nobody: str) -> bool:
    """Show `words`, ask `question`, and return whether the answer is yes; all else, an end of input too, is no.

    Args:
        nobody: says what to do where there is nobody to ask.

    Raises:
        UserError: standard input or standard error is no terminal.
        KeyboardInterrupt: Ctrl+C was the answer.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(nobody)
    print(f"{words}\n\n{question} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in {"y", "yes"}
