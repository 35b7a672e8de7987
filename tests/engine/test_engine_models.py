"""A model from a folder, in bf16, over the real service."""

import torch

from engine.model import Llama
from engine.models import open_model
from engine.plain import answer_plainly
from engine.requests import Request, StreamState
from tests.engine.folders import CONFIG, write_folder
from tests.engine.test_engine import BLOCK_TOKENS, FRAME_BYTES, assert_proven, attach, run_alone, serve


def test_what_was_computed_in_bf16_comes_back_from_below(tmp_path):
    model = Llama(open_model(str(write_folder(tmp_path / "model"))).load_weights(torch.bfloat16))
    layout = model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=torch.bfloat16)
    draw = torch.Generator().manual_seed(5)
    prompts = [
        tuple(torch.randint(CONFIG["vocab_size"], (length,), generator=draw).tolist())
        for length in (120, 75, 140)
    ]
    # Frames are half as large as those that `serve` counts in: there are 12, and a prompt takes up to 10.
    assert layout.frame_stride_bytes == FRAME_BYTES // 2
    with serve(tmp_path, gpu_frames=6, cpu_frames=40) as service, attach(service, model) as (engine, counts):
        for turn, prompt in enumerate([*prompts, *prompts], 1):
            request = Request(id=f"r{turn}", prompt=prompt, max_new_tokens=12, session=f"s{turn}", turn=1)
            stream = run_alone(engine, service, request)
            assert stream.state is StreamState.FINISHED
            if turn <= len(prompts):
                # After a hit the rest is computed in another piece, which rounds otherwise.
                assert stream.answer == answer_plainly(model, prompt, 12).tokens
            else:
                assert stream.cached.cpu > 0
        assert_proven(counts)
