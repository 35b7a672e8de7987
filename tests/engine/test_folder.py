"""Folders: how files are found, what names a model, and what is refused before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.formats.folder import Folder
from engine.formats.loading import load_weights
from engine.models import ModelNotFoundError, open_model
from engine.refused import ModelRefused, TokenizerRefused
from tests.engine.folders import draw_tensors, write_config, write_folder

INDEX = "model.safetensors.index.json"
QWEN3: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"]}
MISTRAL: dict[str, Any] = {"architectures": ["MistralForCausalLM"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "architectures = ['MixtralForCausalLM']: it is not"),
        ({"architectures": ...}, "architectures is missing"),
        ({"num_local_experts": 8}, "num_local_experts = 8: a mixture of experts"),
        (MISTRAL | {"sliding_window": 64}, "sliding_window = 64: attention that ends after 64 tokens"),
        (MISTRAL | {"max_position_embeddings": 8192}, "sliding_window is missing: attention that ends after"),
        (QWEN3 | {"use_sliding_window": True, "sliding_window": 64}, "sliding_window = 64: attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = ['full_attention', 'sli"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type = 'yarn': this rule"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters.rope_type = 'dynamic': this"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing: a positive number"),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            "rope_scaling.high_freq_factor = 4.0: it must be above low_freq_factor",
        ),
        ({"rope_scaling": ["linear"]}, "rope_scaling = ['linear']: an object is needed"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5: only 1 is supported"),
        ({"rope_theta": "1e4"}, "rope_theta = '1e4': a positive number is needed"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config = {'quant_method': 'gptq'}"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map = {'AutoModel': 'x.Y'}: code that comes with"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu': only silu"),
        ({"head_dim": 7}, "head_dim = 7: a head of 7 dimensions can't be rotated by halves"),
        ({"num_attention_heads": 5}, "num_key_value_heads = 2: the 5 heads must be a multiple"),
        ({"hidden_size": 26}, "head_dim is missing: 26 is no multiple of 4 heads"),
        (QWEN3, "head_dim is missing: a positive integer is needed"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0: a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True: a positive integer"),
        ({"vocab_size": ...}, "vocab_size is missing: a positive integer"),
        ({"attention_bias": "yes"}, "attention_bias = 'yes': true or false is needed"),
        ({"attention_bias": True}, "tensors ['model.layers.0.self_attn.k_proj.bias', "),
        ({"num_hidden_layers": 1}, "tensors ['model.layers.1.input_layernorm.weight', "),
        (
            {"vocab_size": 62},
            "tensor model.embed_tokens.weight of shape [61, 24]: the config asks for [62, 24]",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_its_field(tmp_path, changes, message):
    write_folder(tmp_path, **changes)
    with pytest.raises(ModelRefused) as refused:
        Folder(tmp_path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path))
    assert "; remedy: " in str(refused.value)


def test_a_window_as_long_as_the_context_is_none(tmp_path):
    Folder(write_folder(tmp_path, **MISTRAL, sliding_window=256))
    Folder(write_folder(tmp_path, **MISTRAL, sliding_window=None))
    # What Qwen's configs say of a window counts only with the flag.
    qwen2: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64}
    with pytest.raises(ModelRefused, match=r"q_proj\.bias.*are missing"):
        Folder(write_folder(tmp_path, **qwen2))


# ---- files ----


def edit_index(folder: Path, change: Any) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def write_sharded(folder: Path) -> Path:
    write_config(folder)
    tensors = draw_tensors()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    places = {name: file for file, part in parts.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return folder


def test_shards_are_the_same_model_with_an_index_and_without(tmp_path):
    whole = load_weights(Folder(write_folder(tmp_path / "whole")))
    (tmp_path / "shards").mkdir()
    shards = write_sharded(tmp_path / "shards")
    assert load_weights(Folder(shards)).digest == whole.digest
    (shards / INDEX).unlink()
    assert load_weights(Folder(shards)).digest == whole.digest
    save_file({"lm_head.weight": torch.zeros(61, 24)}, shards / "c.safetensors")
    with pytest.raises(ModelRefused, match=r"tensor lm_head\.weight: it is in c\.safetensors and in another"):
        Folder(shards)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("gone.safetensors", "weight_map names 'gone.safetensors': there is no such file"),
        ("../a.safetensors", "weight_map names '../a.safetensors': it is no *.safetensors of this folder"),
        ("pytorch_model.bin", "weight_map names 'pytorch_model.bin': it is no *.safetensors"),
        ("b.safetensors", "tensor lm_head.weight: the index says that it is in b.safetensors, and it is not"),
        (7, "weight_map = "),
    ],
)
def test_an_index_that_is_wrong_is_refused(tmp_path, place, message):
    write_sharded(tmp_path)
    edit_index(tmp_path, lambda places: places.update({"lm_head.weight": place}))
    with pytest.raises(ModelRefused) as refused:
        Folder(tmp_path)
    assert message in str(refused.value)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    write_folder(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    for length in (0, 7, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ModelRefused, match=f"{length} bytes: it is no safetensors file, or cut off"):
            Folder(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ')
    with pytest.raises(ModelRefused, match="it is no JSON"):
        Folder(tmp_path)


def test_quantised_tensors_are_refused(tmp_path):
    write_folder(tmp_path)
    tensors = draw_tensors()
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelRefused, match=r"lm_head\.weight of type F8_E4M3: quantised"):
        Folder(tmp_path)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_weights_that_the_type_can_not_hold_are_refused(tmp_path, name):
    write_folder(tmp_path)
    tensors = draw_tensors()
    tensors[name][3, 2] = 70_000.0
    save_file(tensors, tmp_path / "model.safetensors")
    load_weights(Folder(tmp_path), torch.bfloat16)
    with pytest.raises(ModelRefused, match=f"tensor {name}: torch.float16 can't hold.*--dtype bf16"):
        load_weights(Folder(tmp_path), torch.float16)
    tensors[name][3, 2] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelRefused, match=f"tensor {name}: torch.float32 can't hold"):
        load_weights(Folder(tmp_path))


def test_pickled_weights_are_not_read(tmp_path):
    write_config(tmp_path)
    with pytest.raises(ModelRefused, match=r"\*\.safetensors: there is no such file"):
        open_model(str(tmp_path))
    pickled = tmp_path / "pytorch_model.bin"
    pickled.touch()
    for path in (tmp_path, pickled):
        with pytest.raises(ModelRefused, match=r"pytorch_model\.bin: pickled.*convert to safetensors"):
            open_model(str(path))


def test_paths_that_name_no_model_are_refused(tmp_path):
    with pytest.raises(
        ModelNotFoundError, match=r"there is no such model, file or folder; remedy: .*smollm2, tiny"
    ):
        open_model(str(tmp_path / "none"))
    with pytest.raises(ModelRefused, match=r"config\.json: there is no such file"):
        open_model(str(tmp_path))
    write_folder(tmp_path)
    with pytest.raises(ModelRefused, match="weights alone have no config; remedy: name the folder"):
        open_model(str(tmp_path / "model.safetensors"))
    with pytest.raises(ModelRefused, match="it is no GGUF file"):
        open_model(str(tmp_path / "config.json"))


def test_a_model_without_a_tokenizer_computes_ids(tmp_path):
    model = open_model(str(write_folder(tmp_path)))
    assert model.load_weights(torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(TokenizerRefused, match=r"tokenizer\.json: there is no such file; remedy: "):
        model.load_tokenizer()


# ---- what names a model ----


def test_a_matrix_for_the_logits_counts_whatever_the_config_says(tmp_path):
    own = load_weights(Folder(write_folder(tmp_path, tie_word_embeddings=True)))
    assert own.output is not own.embedding
    tensors = draw_tensors()
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    tied = load_weights(Folder(tmp_path))
    assert tied.output is tied.embedding
    write_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ModelRefused, match="tie_word_embeddings = False: and the weights have no lm_head"):
        Folder(tmp_path)


def test_whatever_changes_what_is_computed_changes_the_digest(tmp_path):
    digests = [load_weights(Folder(write_folder(tmp_path))).digest]
    assert load_weights(Folder(tmp_path)).digest == digests[0]
    for changes in (
        {"rope_theta": 20000.0},
        {"rms_norm_eps": 1e-6},
        {"rope_scaling": {"type": "linear", "factor": 2}},
    ):
        digests.append(load_weights(Folder(write_folder(tmp_path, **changes))).digest)
    digests.append(load_weights(Folder(write_folder(tmp_path)), torch.float16).digest)
    for name in draw_tensors():
        tensors = draw_tensors()
        tensors[name].flatten()[-1] += 1e-3
        save_file(tensors, tmp_path / "model.safetensors")
        digests.append(load_weights(Folder(tmp_path)).digest)
    assert len(set(digests)) == len(digests) == 5 + 21


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_that_changes_later_changes_nothing_in_memory(tmp_path, dtype):
    """Also where the types are equal, so that no conversion makes a copy."""
    write_folder(tmp_path, dtype)
    weights = load_weights(Folder(tmp_path), dtype)
    tensors = draw_tensors(dtype)
    path = tmp_path / "model.safetensors"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(bytes(size - size // 4))
    assert torch.equal(weights.embedding, tensors["model.embed_tokens.weight"])
    assert torch.equal(weights.output, tensors["lm_head.weight"])
    assert torch.equal(weights.final_norm, tensors["model.norm.weight"])
    for index, layer in enumerate(weights.layers):
        norm = tensors[f"model.layers.{index}.input_layernorm.weight"]
        assert torch.equal(layer.attention_norm, norm)
        assert torch.equal(layer.down, tensors[f"model.layers.{index}.mlp.down_proj.weight"].T)
    # What is there now is another model.
    assert load_weights(Folder(tmp_path), dtype).digest != weights.digest
