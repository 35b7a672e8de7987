"""Answers come back as the tokens that they were generated as, where their text returns."""

from engine.server.sessions import ANSWERS_MAX, SessionTokens


def test_an_answer_is_put_back_in_its_place():
    kept = SessionTokens(100)
    kept.note("s", "Q1 A:", "yes", [7, 8])
    assert kept.split("s", "Q1 A:yes Q2 A:") == ["Q1 A:", [7, 8], " Q2 A:"]


def test_several_answers_each_in_its_place():
    kept = SessionTokens(100)
    kept.note("s", "1:", "a", [7])
    kept.note("s", "1:a 2:", "b", [8])
    kept.note("s", "1:a 2:b 3:", "c", [9])
    assert kept.split("s", "1:a 2:b 3:c 4:") == ["1:", [7], " 2:", [8], " 3:", [9], " 4:"]


def test_what_was_edited_matches_nothing_from_there_on():
    kept = SessionTokens(100)
    kept.note("s", "1:", "a", [7])
    kept.note("s", "1:a 2:", "b", [8])
    assert kept.split("s", "1:a two:b 3:") == ["1:", [7], " two:b 3:"]
    assert kept.split("s", "one:a 2:b 3:") == ["one:a 2:b 3:"]
    assert kept.split("s", "1:A 2:") == ["1:A 2:"]


def test_branches_are_kept_side_by_side():
    kept = SessionTokens(100)
    kept.note("s", "1:", "a", [7])
    kept.note("s", "1:", "b", [8])
    assert kept.split("s", "1:a!") == ["1:", [7], "!"]
    assert kept.split("s", "1:b!") == ["1:", [8], "!"]


def test_of_one_answer_in_two_tokenisations_the_first_stays():
    kept = SessionTokens(100)
    kept.note("s", "1:", "ab", [7, 8])
    kept.note("s", "1:", "ab", [9])
    assert kept.split("s", "1:ab") == ["1:", [7, 8], ""]
    assert kept.token_count == 2


def test_of_two_answers_one_of_which_begins_with_the_other_the_longer_counts():
    kept = SessionTokens(100)
    kept.note("s", "1:", "a", [7])
    kept.note("s", "1:", "ab", [8])
    assert kept.split("s", "1:ab 2:") == ["1:", [8], " 2:"]
    assert kept.split("s", "1:ac 2:") == ["1:", [7], "c 2:"]


def test_sessions_know_nothing_of_each_other():
    kept = SessionTokens(100)
    kept.note("s", "1:", "a", [7])
    assert kept.split("other", "1:a 2:") == ["1:a 2:"]
    kept.note("", "1:", "a", [7])
    assert kept.split("", "1:a 2:") == ["1:a 2:"]


def test_the_session_used_longest_ago_is_forgotten_first():
    kept = SessionTokens(5)
    kept.note("old", "1:", "a", [1, 2])
    kept.note("new", "1:", "a", [3, 4])
    kept.split("old", "1:a")
    kept.note("third", "1:", "a", [5, 6])
    assert kept.token_count == 4
    assert kept.split("new", "1:a") == ["1:a"]
    assert kept.split("old", "1:a") == ["1:", [1, 2], ""]
    kept.note("large", "1:", "a", list(range(6)))
    assert len(kept) == 2


def test_a_session_keeps_its_last_answers():
    kept = SessionTokens(10_000)
    for turn in range(ANSWERS_MAX + 1):
        kept.note("s", f"{turn}:", "a", [turn])
    assert kept.split("s", "0:a") == ["0:a"]
    assert kept.split("s", "1:a") == ["1:", [1], ""]
    assert kept.token_count == ANSWERS_MAX
