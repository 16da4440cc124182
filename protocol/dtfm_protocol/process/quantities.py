"""Quantities in words, alike in all commands: sizes in decimal units (a GB is 10^9 bytes), and the time left."""

GB = 1_000_000_000
"""Bytes of a gigabyte, of disk, network and memory alike, as options and screens mean it."""
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_in_words(size: float) -> str:
    """Return a number of bytes with three figures at most: "0 B", "1.23 GB", "850 MB"."""
    value, unit = max(0.0, size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}" if value < 999.5 else f"{value:,.0f} {_UNITS[unit]}"


def time_in_words(seconds: float) -> str:
    """Return a length of time as people estimate one: "less than a minute", "9 min", "3 h", "2 days"."""
    if seconds < 60:
        return "less than a minute"
    for unit, each, most in (("min", 60.0, 99.5), ("h", 3600.0, 47.5)):
        if seconds / each < most:
            return f"{seconds / each:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} days"
