import pytest

from engine.server.inbox import End
from engine.server.speaker import Speaker
from engine.server.tiny_words import END, TinyWords

WORDS = TinyWords()


def speaker(*stops: str) -> Speaker:
    return Speaker(WORDS, stops)


def test_the_models_own_end_is_no_text():
    one = speaker()
    assert one.hear([*b"ab"]) == "ab"
    assert one.hear([END], End.STOP) == ""
    assert (one.text, one.finish, one.token_count) == ("ab", "stop", 3)
    assert one.spoken() == ("ab", [*b"ab"])


def test_tokens_that_came_after_a_stop_string_are_not_heard():
    one = speaker("stop")
    assert one.hear([*b"go, s"]) == "go, "
    assert one.hear([*b"top and on"]) == ""
    assert one.was_cut
    assert (one.text, one.finish, one.token_count) == ("go, ", "stop", 8)
    assert one.spoken() == ("go, ", [*b"go, "])


def test_what_waited_for_more_comes_with_the_end():
    one = speaker("stop")
    assert one.hear([*b"sto"]) == ""
    assert one.hear([0xC3], End.LENGTH) == "sto\ufffd"
    assert one.finish == "length"
    # The half of a character is not whole: it would come back as other tokens.
    assert one.spoken() == ("sto", [*b"sto"])


def test_a_stop_string_that_is_complete_only_with_the_end():
    one = speaker("\ufffd")
    assert one.hear([ord("a"), 0xC3], End.LENGTH) == "a"
    assert one.finish == "stop"


@pytest.mark.parametrize("end", [End.FAILED, End.LATE, End.CLOSED])
def test_an_end_that_is_none_of_the_answers_own_finishes_nothing(end):
    one = speaker()
    one.hear([*b"a"], end)
    assert one.finish == ""


def test_a_stop_string_in_the_middle_of_a_token_leaves_that_token_out():
    pair = next(token for token in range(258, 320) if len(WORDS.decode([token])) == 2)
    first, second = list(WORDS.decode([pair]))
    one = speaker(second + "!")
    assert one.hear([ord("x"), pair, ord("!")]) == "x" + first
    assert one.spoken() == ("x", [ord("x")])
