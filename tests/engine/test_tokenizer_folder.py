"""tokenizer.json and what stands beside it, against `transformers` and `tokenizers` on the same files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer as Encoder
from tokenizers.processors import TemplateProcessing

from engine.formats.folder_tokenizer import read_tokenizer
from engine.refused import TokenizerRefused
from tests.engine.vocabularies import CONTROL, TEMPLATE, TEXTS, train

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BEGIN, TURN, END = CONTROL
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Name 3 rivers. "},
    {"role": "system", "content": "left out"},
    {"role": "assistant", "content": "The Rhine, <b>"},
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> "tuple[Path, PreTrainedTokenizerFast]":
    """As `transformers` saves it."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    encoder = train()
    encoder.post_processor = TemplateProcessing(single=[BEGIN, "$A"], special_tokens=[(BEGIN, 0)])
    encoder.enable_truncation(5)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=encoder, bos_token=BEGIN, eos_token=TURN, chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    read = AutoTokenizer.from_pretrained(folder)
    assert isinstance(read, PreTrainedTokenizerFast)
    return folder, read


def test_texts_are_tokens_as_in_the_libraries(saved):
    folder, theirs = saved
    ours, encoder = read_tokenizer(folder), Encoder.from_file(str(folder / "tokenizer.json"))
    encoder.no_truncation()
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ids == encoder.encode(text, add_special_tokens=False).ids
        assert ours.encode_prompt(text) == theirs.encode(text) == [0, *ids]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.vocab_size == len(theirs)


def test_control_tokens_are_known_by_name(saved):
    ours = read_tokenizer(saved[0])
    assert ours.control_names == set(CONTROL)
    for name in CONTROL:
        assert ours.decode([*ours.encode(name[:1]), *ours.encode(name[1:])]) == name


def test_chats_are_rendered_as_by_transformers(saved):
    folder, theirs = saved
    ours = read_tokenizer(folder)
    for messages in (CHAT, CHAT[1:2], CHAT[:1]):
        for prompt in (True, False):
            text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert ours.render(messages, prompt) == text
            assert ours.chat(messages, prompt) == theirs.encode(text, add_special_tokens=False)
    assert ours.render(CHAT).count(TURN) == 3
    with pytest.raises(TemplateError, match="begins with a tool"):
        ours.chat([{"role": "tool", "content": "4"}])


def test_what_ends_an_answer_is_all_that_the_files_name(saved, tmp_path):
    folder, _ = saved
    assert read_tokenizer(folder).eos_ids == {1, 2}
    copy(folder, tmp_path, without="generation_config.json")
    assert read_tokenizer(tmp_path).eos_ids == {1}
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert read_tokenizer(tmp_path).eos_ids == {1, 2}


OLD = "{{ eos_token }}old"


@pytest.mark.parametrize(
    "template", [OLD, [{"name": "tool", "template": "x"}, {"name": "default", "template": OLD}]]
)
def test_older_forms_of_the_files_are_read_too(saved, tmp_path, template):
    copy(saved[0], tmp_path, without="chat_template.jinja")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    names = {"eos_token": {"content": TURN, "lstrip": False}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.render([]) == f"{TURN}old"
    assert tokenizer.eos_ids == {1, 2}


def test_a_model_without_a_template_has_no_chats(saved, tmp_path):
    copy(saved[0], tmp_path, without="chat_template.jinja")
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
    with pytest.raises(TokenizerRefused, match="chat template: the model has none; remedy: send prompts"):
        tokenizer.chat(CHAT)


def test_what_can_not_be_read_is_refused(saved, tmp_path):
    copy(saved[0], tmp_path, without="")
    (tmp_path / "chat_template.jinja").write_text("\n{% for %}")
    with pytest.raises(TokenizerRefused, match="chat template, line 2: it can't be read"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerRefused, match=r"tokenizer\.json: its text: it can't be read"):
        read_tokenizer(tmp_path)


def copy(folder: Path, other: Path, without: str) -> None:
    for path in folder.iterdir():
        if path.name != without:
            (other / path.name).write_bytes(path.read_bytes())
