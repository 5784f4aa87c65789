"""No character of a name or a message may steer a terminal or spoil a file."""

import pytest

from cometric.core.arguments import check_path
from cometric.core.text import printable, storable


@pytest.mark.parametrize("name", ["plain", "ä", "日本", "🧬", "two words", "tab\tline\n", "\u202e"])
def test_names_that_files_can_hold_stay(name):
    assert storable(name) == name


@pytest.mark.parametrize(
    ("name", "spelled"),
    [("a\0b", r"a\x00b"), ("\udc80", r"\udc80"), ("\ud800x", r"\ud800x"), ("\0\n", "\\x00\n")],
)
def test_names_that_no_file_can_hold_are_spelled_out(name, spelled):
    assert storable(name) == spelled
    assert storable(name).encode("utf-8").count(b"\0") == 0


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("plain ä 日本\nnext", "plain ä 日本\nnext"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("one\rtwo\x08\x9b31m", r"one\rtwo\x08\x9b31m"),
        ("safe\u202efdp.exe\u2066", r"safe\u202efdp.exe\u2066"),
        ("zero\u200bwidth\u2028", r"zero\u200bwidth\u2028"),
        ("lone \udcff \ud83d", r"lone \udcff \ud83d"),
    ],
)
def test_words_for_a_terminal(words, shown):
    assert printable(words) == shown


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b"])
def test_paths_that_cannot_be(path):
    with pytest.raises(ValueError, match="is not a valid file name. Leave out NUL"):
        check_path(path)
    assert check_path("a\udc80b").name == "a\udc80b"  # a byte that is not UTF-8
