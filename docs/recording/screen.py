"""Screen of a terminal: what is on it after what a program has written. It knows what `rich` and shells write: text,
colours, and moves of the cursor within what is shown. Pure."""

import re
from typing import NamedTuple

ESCAPE = re.compile(r"\x1b(?:\[([\d;?]*)([A-Za-z])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>()][0-9A-B]?)")


class Cell(NamedTuple):
    """A character and how it looks."""

    text: str = " "
    colour: int | None = None
    """Number of one of the 16 usual colours; None: the terminal's own."""
    is_bold: bool = False
    is_dim: bool = False


Line = tuple[Cell, ...]
BLANK = Cell()


class Screen:
    """The screen, of a fixed number of columns and rows; what is scrolled out of it is gone."""

    def __init__(self, columns: int = 90, rows: int = 30) -> None:
        self.columns, self.rows = columns, rows
        self._lines = [[BLANK] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._style = BLANK

    def lines(self) -> tuple[Line, ...]:
        """Return what is shown, a line a row, without what is blank at the end of each."""
        return tuple(_trimmed(line) for line in self._lines)

    def text(self) -> str:
        """Return what is shown, without how it looks."""
        return "\n".join("".join(cell.text for cell in line) for line in self.lines()).rstrip("\n")

    def write(self, data: str) -> None:
        """Take what a program has written."""
        place = 0
        for escape in ESCAPE.finditer(data):
            self._print(data[place : escape.start()])
            if escape[2]:
                self._obey(escape[2], escape[1])
            place = escape.end()
        self._print(data[place:])

    def _print(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self._down()
            elif character == "\r":
                self._column = 0
            elif character == "\b":
                self._column = max(0, self._column - 1)
            elif character >= " " and character != "\x7f":
                if self._column == self.columns:
                    self._column = 0
                    self._down()
                self._lines[self._row][self._column] = self._style._replace(text=character)
                self._column += 1

    def _down(self) -> None:
        if self._row == self.rows - 1:
            self._lines = [*self._lines[1:], [BLANK] * self.columns]
        else:
            self._row += 1

    def _obey(self, command: str, arguments: str) -> None:
        numbers = [int(one) for one in re.findall(r"\d+", arguments)]
        count = numbers[0] if numbers else 1
        match command:
            case "A":
                self._row = max(0, self._row - count)
            case "B":
                self._row = min(self.rows - 1, self._row + count)
            case "C":
                self._column = min(self.columns - 1, self._column + count)
            case "D":
                self._column = max(0, self._column - count)
            case "G":
                self._column = min(self.columns, count) - 1
            case "H":
                self._row, self._column = 0, 0
            case "J":
                self._lines[self._row + 1 :] = [[BLANK] * self.columns for _ in self._lines[self._row + 1 :]]
                self._erase(0)
            case "K":
                self._erase(numbers[0] if numbers else 0)
            case "m":
                self._look(numbers or [0])

    def _erase(self, part: int) -> None:
        """Erase the line: 0 from the cursor on, 1 up to it, 2 all."""
        line, here = self._lines[self._row], self._column
        first, last = (0 if part else here), (here + 1 if part == 1 else self.columns)
        line[first:last] = [BLANK] * (last - first)

    def _look(self, numbers: list[int]) -> None:
        for number in numbers:
            if number == 0:
                self._style = BLANK
            elif number == 1:
                self._style = self._style._replace(is_bold=True)
            elif number == 2:
                self._style = self._style._replace(is_dim=True)
            elif number == 22:
                self._style = self._style._replace(is_bold=False, is_dim=False)
            elif 30 <= number <= 37:
                self._style = self._style._replace(colour=number - 30)
            elif number == 39:
                self._style = self._style._replace(colour=None)
            elif 90 <= number <= 97:
                self._style = self._style._replace(colour=number - 82)


def _trimmed(line: list[Cell]) -> Line:
    end = len(line)
    while end and line[end - 1].text == " ":
        end -= 1
    return tuple(line[:end])
