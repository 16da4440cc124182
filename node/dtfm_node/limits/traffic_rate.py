"""Rate of traffic as a person writes it, with its unit: bits or bytes a second, in thousands."""

import re

from dtfm_protocol.errors import UserError

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
BITS_PER_SECOND = {"kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9}
BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
LEAST = 1e5 / 8
"""Bytes a second below which nobody can take part: a step's messages would take minutes."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)(?:/s)?")


def bytes_a_second(text: str, option: str) -> float:
    """Return the bytes a second that `text` names: "10Mbit", "1.2MB/s", "800 kbit/s".

    Args:
        text: a number and its unit.
        option: name of the option that it was given for.

    Raises:
        UserError: the number or its unit is missing, or the rate is too low to take part with.
    """
    found = _RATE.fullmatch(text.strip())
    unit = found[2] if found else ""
    bits = BITS.get(unit.lower(), BITS_PER_SECOND.get(unit))
    size = bits / 8 if bits is not None else BYTES.get(unit)
    if found is None or size is None:
        raise UserError(
            f"{option} {text}: say a number and its unit, bits as in 10Mbit or bytes as in 1.2MB/s (kbit, Mbit, Gbit, "
            "kB/s, MB/s, GB/s)"
        )
    rate = float(found[1]) * size
    if rate < LEAST:
        raise UserError(
            f"{option} {text}: a node cannot take part with less than 100kbit; to have it send nothing for a while, "
            "say `dtfm-node pause`"
        )
    return rate
