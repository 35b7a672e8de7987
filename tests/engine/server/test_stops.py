import itertools

import pytest

from engine.server.stops import StopStrings


def passed(stops, pieces) -> tuple[list[str], str, bool]:
    through = StopStrings(stops)
    return [through.add(piece) for piece in pieces], through.end(), through.found


def test_text_without_the_beginning_of_a_stop_string_passes_at_once():
    assert passed(["END"], ["one ", "two"]) == (["one ", "two"], "", False)
    assert passed([], ["one", ""]) == (["one", ""], "", False)


def test_what_could_become_one_waits():
    assert passed(["END"], ["an E", "N", "T"]) == (["an ", "", "ENT"], "", False)
    assert passed(["END"], ["an EN"]) == (["an "], "EN", False)


@pytest.mark.parametrize("cuts", list(itertools.combinations(range(1, 10), 3)))
def test_it_is_found_however_it_comes(cuts):
    text = "ab<stop>cd"
    pieces = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]
    out, rest, found = passed(["<stop>", "zzz"], pieces)
    assert ("".join(out) + rest, found) == ("ab", True)


def test_the_first_in_the_text_counts_whichever_is_named_first():
    assert passed(["later", "soon"], ["sooner or later"]) == ([""], "", True)


def test_after_it_nothing_passes():
    assert passed(["x"], ["axb", "c"]) == (["a", ""], "", True)


def test_a_stop_string_that_begins_like_itself():
    assert passed(["aab"], ["a", "a", "a", "b", "!"]) == (["", "", "a", "", ""], "", True)


def test_an_empty_one_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
