"""Conversations for `make demo-finetune`: in which of Python's modules a function is.

`python examples/finetune_data.py FILE` writes them as JSON lines.
"""

import json
import sys
from pathlib import Path

FUNCTIONS = {
    "itertools": "chain combinations count cycle groupby islice pairwise permutations product starmap takewhile tee",
    "math": "ceil comb cos exp factorial floor gcd hypot log sin sqrt tan",
    "random": "betavariate choice choices gauss getrandbits randbytes randint randrange sample seed shuffle uniform",
    "shutil": "chown copyfile copymode copytree disk_usage ignore_patterns make_archive move rmtree which",
    "time": "asctime ctime gmtime localtime mktime monotonic perf_counter process_time sleep strftime strptime tzset",
}
"""Functions that are asked for, by their module."""


def conversations() -> list[list[dict[str, str]]]:
    """Return a conversation on each function: a question, and its answer."""
    return [
        [
            {"role": "user", "content": f"Where is {function}?"},
            {"role": "assistant", "content": f"It is in {module}."},
        ]
        for module, functions in FUNCTIONS.items()
        for function in functions.split()
    ]


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"messages": one}) + "\n" for one in conversations()), encoding="utf-8")
