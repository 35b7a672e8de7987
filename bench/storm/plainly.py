"""Whether a quiet server's answers are those of the plain run: no service, no cache, one token after another.

A beam search has no plain run; tests/engine/test_beams.py has the rules that it is held to.
"""

from collections.abc import Sequence

from bench.storm.catalogue import CHAT, Ask, Talk
from bench.storm.telling import Right
from engine.plain import answer_plainly
from engine.sampling import Sampling
from engine.server.inbox import End
from engine.server.loading import Loaded
from engine.server.speaker import Speaker

__all__ = ["check_ask", "check_talk"]


def check_ask(loaded: Loaded, ask: Ask) -> str:
    """What is wrong with its right answer; empty: nothing."""
    words = loaded.words
    if ask.path == CHAT:
        tokens = words.encode(words.render(ask.body["messages"]))
    else:
        tokens = words.encode_prompt(ask.body["prompt"])
    return _fault(loaded, ask, tokens)[0]


def check_talk(loaded: Loaded, talk: Talk, session: str) -> str:
    """Of an answer that comes back as text its tokens are the prompt's."""
    words, text, tokens = loaded.words, "", list[int]()
    for turn in range(len(talk.says)):
        ask = talk.ask(turn, session)
        prompt = words.render(ask.body["messages"])
        tokens += words.encode(prompt[len(text) :])
        fault, speaker = _fault(loaded, ask, tokens)
        if fault:
            return f"turn {turn}: {fault}"
        spoken, answer = speaker.spoken()
        text, tokens = prompt + spoken, tokens + answer
    return ""


def _fault(loaded: Loaded, ask: Ask, prompt: Sequence[int]) -> tuple[str, Speaker]:
    """And the first answer."""
    right = ask.right
    if right is None:
        raise ValueError("it has not been asked yet")
    body = ask.body
    sampling = Sampling(
        temperature=body.get("temperature", 1.0), top_p=body.get("top_p", 1.0), seed=body.get("seed", 0)
    )
    speakers = []
    for sample in range(body.get("n", 1)):
        plain = answer_plainly(
            loaded.model,
            prompt,
            body["max_tokens"],
            loaded.words.eos_ids,
            sampling=sampling,
            sample=sample,
        )
        speaker = Speaker(loaded.words, body.get("stop", []))
        speaker.hear(plain.tokens, End.LENGTH)
        speakers.append(speaker)
    expected = Right(
        texts=tuple(speaker.text for speaker in speakers),
        finishes=tuple(speaker.finish for speaker in speakers),
        prompt_tokens=len(prompt),
        completion_tokens=sum(speaker.token_count for speaker in speakers),
    )
    return ("" if expected == right else f"the server has {right}, the plain run {expected}"), speakers[0]
