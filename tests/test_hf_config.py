"""Any bytes become a ModelShape or one CourseError; what a family leaves open is as transformers has it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from course_lib.errors import CourseError
from course_lib.hf_config import (
    MOST_FILE_BYTES,
    read_config,
    read_model,
    require_stated_sizes,
    shape_from_config,
    shape_from_module,
    why_not_covered,
)
from course_lib.presets import PRESETS
from course_lib.shape import MOST_LAYERS, ModelShape

LLAMA_SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip
LLAMA = {"model_type": "llama", **LLAMA_SIZES}
MISTRAL = {"model_type": "mistral", **LLAMA_SIZES, "num_attention_heads": 8}
QWEN2 = {"model_type": "qwen2", **LLAMA_SIZES, "num_attention_heads": 32}
GPT2 = {"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 100}


def write(folder: Path, content: Any) -> str:
    path = folder / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(CourseError) as caught:
        shape_from_config(config, "config.json")
    return str(caught.value)


FAMILIES = (LLAMA, MISTRAL, QWEN2, GPT2)
ENTRIES: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": None},
    {"num_key_value_heads": 2},
    {"head_dim": 32},
    {"head_dim": None},
    {"tie_word_embeddings": True},
    {"tie_word_embeddings": False},
    {"attention_bias": True},
    {"mlp_bias": True},
    {"n_inner": 100, "n_positions": 32},
    {"max_position_embeddings": 64},
    {"_name_or_path": "somewhere", "torch_dtype": "bfloat16", "eos_token_id": [1, 2]},
)
#: What the installed transformers cannot build: a null where these two families expect a number.
UNBUILDABLE = ({**MISTRAL, "num_key_value_heads": None}, {**QWEN2, "head_dim": None})


@pytest.mark.parametrize(
    "config",
    [config for family in FAMILIES for more in ENTRIES if (config := {**family, **more}) not in UNBUILDABLE],
)
def test_what_a_config_leaves_open_is_what_transformers_makes_of_it(config: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    shape = shape_from_config(config, "test")
    assert shape.params == sum(parameter.numel() for parameter in model.parameters())
    # how long a context the model was made for is the one thing that a config may keep to itself
    context = shape.max_positions or shape_from_module(model, "test").max_positions
    assert shape_from_module(model, "test") == replace(shape, max_positions=context)


def test_other_names_of_gpt2s_sizes_are_read() -> None:
    renamed = {
        "model_type": "gpt2", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100,
    }  # fmt: skip
    assert shape_from_config(renamed, "test") == shape_from_config(GPT2, "test")
    assert "n_embd and hidden_size" in refusal({**GPT2, "hidden_size": 64})


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config["model_type"])
def test_each_missing_size_is_named(config: dict[str, Any]) -> None:
    sizes = [key for key in config if key != "model_type"]
    for key in sizes:
        for broken in ({k: v for k, v in config.items() if k != key}, {**config, key: None}):
            message = refusal(broken)
            assert key in message
            assert not any(other in message for other in sizes if other != key)
    message = refusal({"model_type": config["model_type"]})
    assert all(key in message for key in sizes)
    assert "model_type" in refusal({key: config[key] for key in sizes})


@pytest.mark.parametrize("value", [0, -1, True, 64.0, "64", [64], {}, float("nan"), float("inf"), 10**30, 2**24 + 1])
@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_hidden_layers", "num_key_value_heads", "head_dim"])
def test_a_size_that_is_none_is_refused_by_its_name(key: str, value: Any) -> None:
    assert key in refusal({**LLAMA, key: value})


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"num_hidden_layers": MOST_LAYERS + 1}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "heads"),
        ({"num_attention_heads": 5}, "5 heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"mlp_bias": []}, "mlp_bias"),
        ({"attention_dropout": 1.5}, "attention_dropout"),
        ({"attention_dropout": float("nan")}, "attention_dropout"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": ""}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "llama\n4" * 100}, "model_type"),
        ({"model_type": "mixtral"}, "course dryrun"),
        ({"hidden_act": "relu"}, "hidden_act"),
    ],
)
def test_other_entries_that_cannot_be_are_refused_by_name(entry: dict[str, Any], named: str) -> None:
    message = refusal({**LLAMA, **entry})
    assert named in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("entry", [{"add_cross_attention": True}, {"reorder_and_upcast_attn": True},
                                   {"activation_function": "relu"}, {"embd_pdrop": 0.0}])  # fmt: skip
def test_variants_that_the_closed_form_does_not_cover_say_so(entry: dict[str, Any]) -> None:
    assert next(iter(entry)) in (why_not_covered({**GPT2, **entry}) or "")
    assert "course dryrun" in refusal({**GPT2, **entry})
    assert why_not_covered(GPT2) is None


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"\x00\xff\xfe\x80", "JSON"),
        (b"[1, 2]", "one object"),
        (b'"llama-7b"', "one object"),
        (b"null", "one object"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "NaN"),
        (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b"{}", "model_type"),
        (b" " * (MOST_FILE_BYTES + 1), "larger"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_files_that_are_no_config_are_refused(tmp_path: Path, content: bytes, named: str) -> None:
    with pytest.raises(CourseError, match=named) as caught:
        read_model(write(tmp_path, content))
    assert len(str(caught.value)) < 500


def test_paths_that_are_no_config_are_refused(tmp_path: Path) -> None:
    for model, named in [
        (str(tmp_path), "config.json"), (str(tmp_path / "no.json"), "preset"), ("llama-8b", "llama3-8b"),
        ("", "folder"), ("a\0b", "preset"), ("x" * 5000, "cannot read"), ("/dev/zero", "preset"),
    ]:  # fmt: skip
        with pytest.raises(CourseError, match=named):
            read_model(model)


def test_a_file_reads_as_the_preset_that_it_was_written_from(tmp_path: Path) -> None:
    for name, config in PRESETS.items():
        path = write(tmp_path, b"\xef\xbb\xbf" + json.dumps(config).encode())  # with the mark that Windows editors set
        assert read_config(path) == read_config(name) == config
        assert read_model(path).params == read_model(name).params
    read_config("gpt2")["n_layer"] = 1
    assert PRESETS["gpt2"]["n_layer"] == 12


def test_a_family_without_a_shape_still_gives_its_config(tmp_path: Path) -> None:
    config = {"model_type": "gemma", **LLAMA_SIZES, "num_key_value_heads": 4, "head_dim": 16}
    assert read_config(write(tmp_path, config)) == config
    require_stated_sizes(config, "test")
    with pytest.raises(CourseError, match="gemma.*course dryrun"):
        read_model(write(tmp_path, config))


@pytest.mark.parametrize("key", LLAMA_SIZES)
def test_the_dry_run_takes_no_sizes_from_transformers_defaults(key: str) -> None:
    config = {"model_type": "gemma", **LLAMA_SIZES}
    with pytest.raises(CourseError, match=key):
        require_stated_sizes({k: v for k, v in config.items() if k != key}, "test")
    with pytest.raises(CourseError, match="no-such-family"):
        require_stated_sizes({**config, "model_type": "no-such-family"}, "test")


def test_the_text_part_of_a_model_with_several_parts_must_state_its_sizes() -> None:
    config = {"model_type": "gemma3", "text_config": LLAMA_SIZES}
    require_stated_sizes(config, "test")
    for broken in ({"model_type": "gemma3"}, {"model_type": "gemma3", "text_config": {"hidden_size": 64}}):
        with pytest.raises(CourseError, match="text_config"):
            require_stated_sizes(broken, "test")


def test_modules_without_a_config_or_a_head_are_refused() -> None:
    with pytest.raises(CourseError, match="Linear has no Hugging Face config"):
        shape_from_module(torch.nn.Linear(2, 2))
    with torch.device("meta"):
        headless = AutoModel.from_config(AutoConfig.for_model(**LLAMA))
    with pytest.raises(CourseError, match="LlamaModel has no language-model head"):
        shape_from_module(headless)


KEYS = sorted({
    *LLAMA, *GPT2, "num_key_value_heads", "head_dim", "tie_word_embeddings", "attention_bias", "mlp_bias",
    "attention_dropout", "max_position_embeddings", "n_positions", "n_inner", "resid_pdrop", "embd_pdrop", "attn_pdrop",
    "hidden_act", "activation_function", "add_cross_attention", "reorder_and_upcast_attn",
})  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.integers(1, 64),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def shape_or_one_line(read: Callable[[], ModelShape]) -> None:
    """``read`` must give a shape or raise a CourseError of one line; anything else fails the test."""
    message = ""
    try:
        assert 0 < read().params < 2**70
    except CourseError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


@given(
    st.sampled_from(FAMILIES),
    st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, max_size=3),
    st.sets(st.sampled_from(KEYS), max_size=1),
)
@settings(max_examples=400, deadline=None)
def test_any_object_is_a_shape_or_one_line(family: dict[str, Any], changed: dict[str, Any], dropped: set[str]) -> None:
    config = {key: value for key, value in {**family, **changed}.items() if key not in dropped}
    shape_or_one_line(lambda: shape_from_config(config, "config.json"))


@given(st.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_a_shape_or_one_line(tmp_path: Path, content: bytes) -> None:
    shape_or_one_line(lambda: read_model(write(tmp_path, content)))


@given(st.text(max_size=40))
@settings(deadline=None)
def test_any_name_is_a_shape_or_one_line(model: str) -> None:
    shape_or_one_line(lambda: read_model(model))
