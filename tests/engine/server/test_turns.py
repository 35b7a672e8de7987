"""Conversations over several turns: what was generated is found again, token by token."""

import pytest

from engine.server.loading import Loaded

pytestmark = pytest.mark.usefixtures("service")

FIRST = {"role": "user", "content": "what is in the harbour?"}
SECOND = {"role": "user", "content": "and who is there?"}


def ask(client, messages, **changes):
    asked = {"model": "tiny", "max_tokens": 100, "temperature": 1.0, "seed": 11, **changes}
    extra = {"session": asked.pop("session")} if "session" in asked else {}
    return client.chat.completions.create(messages=messages, **asked, extra_body=extra)


def answer_of(completion) -> dict:
    return {"role": "assistant", "content": completion.choices[0].message.content}


def computed_blocks(usage) -> int:
    """Full blocks of a turn's prompt and answer that the model was fed: all tokens but the last."""
    return (usage.total_tokens - 1) // 16 * 16


def test_a_second_turn_finds_all_that_the_first_has_computed(client, loaded: Loaded):
    first = ask(client, [FIRST], session="harbour")
    history = [FIRST, answer_of(first), SECOND]
    second = ask(client, history, session="harbour")
    assert second.usage.prompt_tokens_details.cached_tokens == computed_blocks(first.usage)
    third = ask(client, [*history, answer_of(second), FIRST], session="harbour")
    assert third.usage.prompt_tokens_details.cached_tokens == computed_blocks(second.usage)
    # Tokenised again, the first answer is other tokens: at temperature 1 few answers are not.
    again = loaded.words.encode(loaded.words.render(history))
    assert len(again) != second.usage.prompt_tokens


def test_without_a_session_the_answer_is_tokenised_again_and_missed(client):
    first = ask(client, [FIRST], seed=12)
    second = ask(client, [FIRST, answer_of(first), SECOND], seed=12)
    assert 0 < second.usage.prompt_tokens_details.cached_tokens < computed_blocks(first.usage)


def test_the_user_names_a_session_where_nothing_else_does(client):
    first = ask(client, [FIRST], user="someone", seed=13)
    second = ask(client, [FIRST, answer_of(first), SECOND], user="someone", seed=13)
    assert second.usage.prompt_tokens_details.cached_tokens == computed_blocks(first.usage)


def test_an_edited_message_branches_where_it_was_edited(client):
    first = ask(client, [FIRST], session="branching", seed=14)
    history = [FIRST, answer_of(first)]
    second = ask(client, [*history, SECOND], session="branching")
    edited = {"role": "user", "content": "no, who was there?"}
    branch = ask(client, [*history, edited], session="branching")
    # Up to the edit all is there; the old branch too, whenever the user goes back to it.
    assert branch.usage.prompt_tokens_details.cached_tokens >= computed_blocks(first.usage)
    back = ask(client, [*history, SECOND, answer_of(second), FIRST], session="branching")
    assert back.usage.prompt_tokens_details.cached_tokens == computed_blocks(second.usage)
    forth = ask(client, [*history, edited, answer_of(branch), FIRST], session="branching")
    assert forth.usage.prompt_tokens_details.cached_tokens == computed_blocks(branch.usage)


def test_whichever_of_several_answers_is_gone_on_with_is_found(client):
    first = ask(client, [FIRST], session="choices", n=3, seed=23)
    assert [choice.finish_reason for choice in first.choices] == ["length"] * 3
    for choice in first.choices:
        answer = {"role": "assistant", "content": choice.message.content}
        usage = ask(client, [FIRST, answer, SECOND], session="choices", max_tokens=4).usage
        tokens = first.usage.prompt_tokens + first.usage.completion_tokens // 3
        assert usage.prompt_tokens_details.cached_tokens == (tokens - 1) // 16 * 16


def test_an_answer_cut_by_a_stop_string_is_found_as_far_as_its_tokens_go(client):
    free = ask(client, [FIRST], seed=15).choices[0].message.content
    stop = free[40:43]
    first = ask(client, [FIRST], session="cut", seed=15, stop=stop)
    answer = answer_of(first)
    assert answer["content"] == free[: free.index(stop)]
    second = ask(client, [FIRST, answer, SECOND], session="cut")
    cached = second.usage.prompt_tokens_details.cached_tokens
    # The tokens of the stop string are no part of the answer: at most they were in its last block.
    assert computed_blocks(first.usage) - 16 <= cached <= computed_blocks(first.usage)


def test_a_completion_goes_on_from_its_own_text(client):
    asked = {"model": "tiny", "max_tokens": 60, "seed": 3, "user": "writer"}
    first = client.completions.create(**asked, prompt="in the beginning there was")
    text = "in the beginning there was" + first.choices[0].text
    second = client.completions.create(**asked, prompt=text + ". then it was not")
    assert second.usage.prompt_tokens_details.cached_tokens == computed_blocks(first.usage)


@pytest.mark.parametrize("session", ["\x00", "a/b c", "ü" * 128, "🦆" * 64, " "])
def test_whatever_a_session_is_called_the_store_takes_it(client, session):
    """A name that the store refused would end the engine."""
    first = ask(client, [FIRST], session=session, max_tokens=20, seed=19)
    again = ask(client, [FIRST, answer_of(first), SECOND], session=session, max_tokens=2)
    assert again.usage.prompt_tokens_details.cached_tokens >= computed_blocks(first.usage)
