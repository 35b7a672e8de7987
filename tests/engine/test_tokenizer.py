import pytest
from jinja2.exceptions import SecurityError

from engine.formats.gguf_file import GGUFFile
from engine.formats.gguf_tokenizer import read_tokenizer
from engine.models import find_smollm2
from engine.refused import TokenizerRefused
from engine.tokenizer import Tokenizer

IM_START, IM_END, END_OF_TEXT = 1, 2, 0


@pytest.fixture(scope="module")
def file() -> GGUFFile:
    return GGUFFile(find_smollm2())


@pytest.fixture(scope="module")
def tokenizer(file) -> Tokenizer:
    return read_tokenizer(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello, world!",
        "  two  spaces,\ttabs\r\nand\n\n\nlines  ",
        "naïve café, 東京, Ελλάδα, עברית, 👩‍👩‍👧",
        "0123456789 3.14 1e-9 ½ ٣",
        "def f(x):\n    return x['it''s'] != 0x2F",
        "\x00\x7f\ufffd",
    ],
)
def test_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_known_encodings(tokenizer):
    # The digits are tokens of their own: SmolLM2 was trained so, and plain GPT-2 splitting would join them.
    assert tokenizer.encode("Hello world 12345") == [19556, 905, 216, 33, 34, 35, 36, 37]
    assert tokenizer.vocab_size == 49152


def test_a_control_tokens_name_cut_in_two_is_text(tokenizer):
    """So the server tokenises what clients have written."""
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= tokenizer.control_names
    for name in tokenizer.control_names:
        ids = [*tokenizer.encode(name[:1]), *tokenizer.encode(name[1:])]
        assert len(tokenizer.encode(name)) == 1
        assert tokenizer.decode(ids) == name


def test_control_tokens(tokenizer):
    assert tokenizer.encode("<|im_start|>user") == [IM_START, *tokenizer.encode("user")]
    assert tokenizer.decode([IM_START, *tokenizer.encode("user"), IM_END]) == "user"
    assert tokenizer.eos_ids == {IM_END, END_OF_TEXT}


def test_a_chat_follows_the_template(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    )
    assert tokenizer.chat(messages, add_generation_prompt=False) == tokenizer.encode(text)
    assert tokenizer.chat(messages) == tokenizer.encode(text + "<|im_start|>assistant\n")


def test_a_chat_without_a_system_message_gets_the_models_own(tokenizer):
    ids = tokenizer.chat([{"role": "user", "content": "Hi"}])
    assert tokenizer.decode(ids).startswith("system\nYou are a helpful AI assistant named SmolLM")


def test_a_longer_chat_continues_a_shorter_one(tokenizer):
    """What prefix caching lives on: a turn's prompt and answer are the start of the next turn's prompt."""
    first = [{"role": "user", "content": "Name 3 rivers."}]
    prompt = tokenizer.chat(first)
    answer = tokenizer.encode("The Rhine, the Nile and the Amazon.")
    second = [*first, {"role": "assistant", "content": tokenizer.decode(answer)}, first[0]]
    assert tokenizer.chat(second)[: len(prompt) + len(answer) + 1] == [*prompt, *answer, IM_END]


def test_templates_run_in_a_sandbox(file, monkeypatch):
    template = "{{ messages.__class__.__mro__ }}"
    read = file.get
    monkeypatch.setattr(file, "get", lambda key: template if "template" in key else read(key))
    with pytest.raises(SecurityError):
        read_tokenizer(file).chat([])


def test_other_tokenizers_are_refused(file, monkeypatch):
    monkeypatch.setattr(file, "get", lambda key: "llama-bpe")
    with pytest.raises(TokenizerRefused, match=r"tokenizer\.ggml\.model = 'llama-bpe': only 'gpt2'"):
        read_tokenizer(file)
