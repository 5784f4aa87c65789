"""Files of feature sets as other programs write them."""

import pytest

from cometric.files.sets import read_sets


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_mark_at_the_beginning_is_no_part_of_a_name(tmp_path, encoding):
    (tmp_path / "a.gmt").write_text("first\tabout\tg1\tg2\n", encoding)
    (tmp_path / "a.json").write_text('{"first": ["g1", "g2"]}', encoding)
    for path in tmp_path.iterdir():
        assert read_sets(path) == {"first": ["g1", "g2"]}


@pytest.mark.parametrize("letter", ["\u2028", "\x85", "\x0b"])
def test_only_newlines_end_a_line(tmp_path, letter):
    path = tmp_path / "a.gmt"
    path.write_text(f"first\tabout{letter}this\tg1\r\nsecond\t\tg2\n", "utf-8", newline="")
    assert read_sets(path) == {"first": ["g1"], "second": ["g2"]}
