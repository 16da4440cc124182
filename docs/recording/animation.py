"""Frames of a terminal as one animated SVG, which browsers play without any script. Pure."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from docs.recording.cast import Frame
from docs.recording.screen import Cell, Line

CHARACTER, ROW, SIZE = 8.4, 18, 14
"""Width of a character, height of a line, and size of the letters, in pixels."""
MARGIN, BAR = 14, 34
COLOURS = ("#3b4048", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0",
           "#5c6370", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#ffffff")  # fmt: skip
TEXT, DIM, GROUND = "#d7dae0", "#8a919e", "#1e2127"


def animation(frames: Sequence[Frame], columns: int, rows: int, title: str) -> str:
    """Return the SVG of a recording: each line that is ever shown is stored once, frames lie one below the other, and
    the window moves over them. Whoever wants no motion sees the last frame.

    Args:
        frames: the recording.
        columns: the terminal's columns.
        rows: its rows.
        title: what it shows, for those who cannot see it.
    """
    width, height = round(columns * CHARACTER + 2 * MARGIN), rows * ROW + MARGIN
    numbers = {line: number for number, line in enumerate(dict.fromkeys(line for one in frames for line in one.lines))}
    stored = "".join(f'<text id="l{number}">{"".join(_spans(line))}</text>' for line, number in numbers.items() if line)
    film = "".join(
        f'<g transform="translate(0,{index * height})">'
        + "".join(
            f'<use href="#l{numbers[line]}" y="{(row + 1) * ROW}"/>' for row, line in enumerate(frame.lines) if line
        )
        + "</g>"
        for index, frame in enumerate(frames)
    )
    seconds = sum(frame.seconds for frame in frames)
    style = (
        f"text{{font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{TEXT};"
        f"white-space:pre}}.b{{font-weight:bold}}.d{{fill:{DIM}}}"
        + "".join(f".c{number}{{fill:{colour}}}" for number, colour in enumerate(COLOURS))
        + f"@keyframes film{{{''.join(_keys(frames, height, seconds))}}}"
        f".film{{animation:film {seconds:.2f}s step-end infinite}}"
        f"@media(prefers-reduced-motion:reduce){{.film{{animation:none;"
        f"transform:translateY(-{(len(frames) - 1) * height}px)}}}}"
    )
    dots = "".join(
        f'<circle cx="{20 + 18 * place}" cy="17" r="5.5" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + BAR}" width="{width}" '
        f'height="{height + BAR}" role="img"><title>{escape(title)}</title><style>{style}</style><defs>{stored}</defs>'
        f'<rect width="{width}" height="{height + BAR}" rx="8" fill="{GROUND}"/>{dots}'
        f'<svg x="{MARGIN}" y="{BAR}" width="{width - 2 * MARGIN}" height="{height}"><g class="film">{film}</g></svg>'
        "</svg>\n"
    )


def _keys(frames: Sequence[Frame], height: int, seconds: float) -> Iterator[str]:
    """Yield the moments at which the window jumps, in percent of the whole."""
    at = 0.0
    for index, frame in enumerate(frames):
        yield f"{100 * at / seconds:.3f}%{{transform:translateY(-{index * height}px)}}"
        at += frame.seconds


def _spans(line: Line) -> Iterator[str]:
    """Yield a line's runs of one look. Each has its place, so that fonts of another width do not shift it."""
    column = 0
    for look, cells in groupby(line, key=_look):
        text = "".join(cell.text for cell in cells)
        names = f' class="{look}"' if look else ""
        place = f' x="{column * CHARACTER:.1f}" textLength="{len(text) * CHARACTER:.1f}"'
        if text.strip():
            yield f"<tspan{names}{place}>{escape(text, quote=False)}</tspan>"
        column += len(text)


def _look(cell: Cell) -> str:
    colour = f"c{cell.colour}" if cell.colour is not None else ""
    return " ".join(name for name in (colour, "b" if cell.is_bold else "", "d" if cell.is_dim else "") if name)
