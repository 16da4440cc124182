"""A recording shows what the terminal has shown, with long waits cut short, as a picture that browsers read."""

from xml.etree import ElementTree

from docs.recording.animation import animation
from docs.recording.cast import Piece, frames
from docs.recording.screen import Screen


def test_a_screen_shows_what_was_written_to_it_last() -> None:
    screen = Screen(20, 4)
    screen.write("one\r\ntwo\r\n\x1b[32mgreen\x1b[0m plain\r\n")
    screen.write("\x1b[1A\x1b[2K\rline three")
    assert screen.text() == "one\ntwo\nline three"
    screen.write("\r\nfour\r\nfive")
    assert screen.text() == "two\nline three\nfour\nfive", "it has scrolled"


def test_a_screen_keeps_colours_and_wraps_long_lines() -> None:
    screen = Screen(4, 3)
    screen.write("\x1b[1;31mab\x1b[0mcdef")
    first, second, _ = screen.lines()
    assert [(cell.text, cell.colour, cell.is_bold) for cell in first[1:3]] == [("b", 1, True), ("c", None, False)]
    assert "".join(cell.text for cell in second) == "ef"


def test_waits_are_cut_and_what_comes_at_once_is_one_frame() -> None:
    pieces = [Piece(0.0, "a"), Piece(0.01, "b"), Piece(60.0, "c"), Piece(60.5, "d")]
    film = frames(pieces, Screen(10, 2), most_wait=1.0, shortest=0.1, last=5.0)
    assert [("".join(cell.text for cell in one.lines[0]), one.seconds) for one in film] == [
        ("ab", 1.0), ("abc", 0.5), ("abcd", 5.0),
    ]  # fmt: skip


def test_the_picture_has_every_line_once_and_jumps_at_its_times() -> None:
    film = frames([Piece(0.0, "<one>\r\n"), Piece(1.0, "two & three")], Screen(20, 3), last=3.0)
    text = animation(film, 20, 3, "a title")
    picture = ElementTree.fromstring(text)
    shown = ["".join(line.itertext()) for line in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert shown == ["<one>", "two & three"]
    assert "0.000%{transform:translateY(-0px)}25.000%{" in text
