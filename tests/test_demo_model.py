"""The demo over models of one's own: by path, with the frames of their own chat templates."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from kvstore.demo.children import DemoRefused
from kvstore.demo.model import open_model
from kvstore.demo.plan import PROMPT_TOKENS
from kvstore.demo.texts import QUESTIONS, Conversation, read_documents
from tests.engine.folders import write_folder
from tests.engine.vocabularies import CONTROL, train

BEGIN, TURN, _ = CONTROL
TEMPLATE = """{{ bos_token }}
{%- for each in messages %}[{{ each.role }}{{ loop.index }}]{{ each.content + eos_token }}{% endfor %}
{%- if add_generation_prompt %}[assistant{{ messages | length + 1 }}]{% endif %}"""


def write(folder: Path, context: int = 2048, template: str | None = TEMPLATE) -> Path:
    write_folder(folder, max_position_embeddings=context)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train(), bos_token=BEGIN, eos_token=TURN, chat_template=template
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["tiny", "folder"])
def test_prompts_are_what_the_models_own_template_makes_of_the_conversation(tmp_path, name):
    model = open_model(str(write(tmp_path / "mine")) if name == "folder" else name)
    [document] = read_documents(1)
    talk, answer = Conversation(document, model.tokenizer), "It is about memory."
    messages: list[dict[str, str]] = []
    rest = f"This is {document.name}:\n\n{document.text}"
    for turn, length in enumerate(PROMPT_TOKENS, start=1):
        prompt = talk.next_prompt(turn, length)
        assert len(prompt) == length
        said = _said(model, prompt, turn)
        assert said.endswith(QUESTIONS[turn - 1])
        piece = said.removesuffix(QUESTIONS[turn - 1])
        assert rest.startswith(piece)
        rest = rest[len(piece) :]
        messages.append({"role": "user", "content": said})
        assert _text(model, prompt) == model.tokenizer.render(messages)
        messages.append({"role": "assistant", "content": answer})
        talk.take_answer(model.tokenizer.encode(answer))


def _text(model, tokens) -> str:
    if model.name == "tiny":
        control = model.tokenizer.CONTROL
        pieces = [control[each - 256].encode() if each > 255 else bytes([each]) for each in tokens]
        return b"".join(pieces).decode()
    return model.tokenizer._encoder.decode(tokens, skip_special_tokens=False)


def _said(model, prompt, turn: int) -> str:
    """The last message of the user."""
    text = _text(model, prompt)
    if model.name == "tiny":
        return text.rpartition("<|im_start|>user\n")[2].rpartition("<|im_end|>\n<|im_start|>assistant\n")[0]
    return text.rpartition(f"[user{2 * turn - 1}]")[2].rpartition(TURN)[0]


@pytest.mark.parametrize(
    ("context", "template", "why"),
    [
        (1024, TEMPLATE, "context of 1024 tokens is too short for conversations of 1528; remedy: choose"),
        (2048, None, "chat template: the model has none"),
        (2048, "{{ raise_exception('never') }}", "its chat template refuses a conversation: never"),
    ],
)
def test_a_model_that_can_not_play_is_refused(tmp_path, context, template, why):
    with pytest.raises(DemoRefused, match=why):
        open_model(str(write(tmp_path / "mine", context, template)))


def test_a_model_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DemoRefused, match=r"--model /none: there is no such model, file or folder; remedy"):
        open_model("/none")
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(DemoRefused, match=r"x\.gguf"):
        open_model(str(tmp_path / "x.gguf"))
