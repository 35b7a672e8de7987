"""`--model` and `--dtype` of the worker, in its plain run."""

import io
import json
import sys
from typing import Any

import pytest
import torch

from engine.formats.folder import Folder
from engine.formats.loading import load_weights
from engine.model import Llama
from engine.plain import answer_plainly
from engine.worker import main
from tests.engine.folders import write_folder

PROMPT = [5, 17, 60, 3, 22, 41, 8]


@pytest.fixture
def answer(monkeypatch, capsys):
    """Runs a worker on one request; its exit status, and the last line that it told."""
    threads = torch.get_num_threads()

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        request = {"request": "a", "prompt": PROMPT, "max_new_tokens": 12}
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request) + "\n"))
        monkeypatch.setattr(sys, "argv", ["engine.worker", "--plain", "--threads", "1", *arguments])
        status = main()
        return status, json.loads(capsys.readouterr().out.splitlines()[-1])

    yield run
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_folder_is_named_by_its_path(tmp_path, answer, dtype):
    write_folder(tmp_path)
    status, told = answer("--model", str(tmp_path), "--dtype", dtype)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    weights = load_weights(Folder(tmp_path), types[dtype])
    assert weights.dtype == types[dtype]
    assert status == 0
    assert told["tokens"] == answer_plainly(Llama(weights), PROMPT, 12).tokens


def test_what_is_refused_is_told_in_one_line(tmp_path, answer):
    write_folder(tmp_path, hidden_act="gelu")
    status, told = answer("--model", str(tmp_path))
    assert status == 1
    assert told["event"] == "error"
    assert told["reason"].startswith("ModelRefused: ")
    assert "hidden_act = 'gelu': only silu is supported; remedy: " in told["reason"]
    assert answer("--model", str(tmp_path / "none"))[1]["reason"].startswith("ModelNotFoundError: ")
