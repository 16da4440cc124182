"""Numbers as people say them: durations and counts."""


def duration(seconds: float) -> str:
    """Return a duration in one or two units: "45 s", "9 min", "3 h 20 min", "2 days 4 h"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes and hours < 10 else f"{hours + (minutes >= 30)} h"
    days, hours = divmod(round(seconds / 3600), 24)
    word = "1 day" if days == 1 else f"{days:,} days"
    return f"{word} {hours} h" if hours and days < 10 else word


def counted(number: int, what: str, more: str = "") -> str:
    """Return a number of things: "1 node", "1,500 steps"; `more`: what several are called, if not by an s."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {more or what + 's'}"


def many(number: float) -> str:
    """Return a count that may be large: "950", "12.3 thousand", "4.56 million"."""
    for word in ("", " thousand", " million", " billion"):
        if number < 999.5:
            return f"{number:.3g}{word}"
        number /= 1000
    return f"{number:.4g} trillion"
