"""Every preset against transformers itself, and against the counts that the models' makers publish."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from course_lib.hf_config import read_model, shape_from_module
from course_lib.presets import PRESETS

#: Parameters as the models' pages state them (safetensors metadata on the Hugging Face hub).
PUBLISHED_PARAMS = {
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}


def on_meta(name: str) -> PreTrainedModel:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**PRESETS[name]))


def test_every_preset_has_a_published_count() -> None:
    assert set(PRESETS) == set(PUBLISHED_PARAMS)


@pytest.mark.parametrize("name", PRESETS)
def test_shape_and_transformers_count_the_published_parameters(name: str) -> None:
    model = on_meta(name)
    shape = read_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED_PARAMS[name]
    assert shape.params == PUBLISHED_PARAMS[name]
    assert shape_from_module(model, name) == shape


@pytest.mark.parametrize("name", ["llama-70b", "qwen2.5-0.5b", "gpt2"])
def test_every_tensor_has_the_shape_that_transformers_gives_it(name: str) -> None:
    shape = read_model(name)
    theirs = sorted(tuple(sorted(parameter.shape)) for parameter in on_meta(name).parameters())
    ours = [
        tuple(sorted(size))  # GPT-2's Conv1D stores a weight the other way round
        for tensor, size in shape.parameter_tensors.items()
        for _ in range(shape.layers if tensor.startswith("blocks.") else 1)
    ]
    assert sorted(ours) == theirs


@pytest.mark.filterwarnings("ignore")  # of the libraries about each other
@pytest.mark.parametrize("name", ["llama3-8b", "qwen2.5-0.5b", "gpt2"])
@pytest.mark.parametrize("targets", ["attention", "all-linear", "names"])
def test_adapters_have_as_many_parameters_as_peft_makes(name: str, targets: str) -> None:
    peft = pytest.importorskip("peft")
    shape, model = read_model(name), on_meta(name)
    names = {"llama": ("q_proj", "down_proj"), "gpt2": ("c_proj",)}[shape.family] if targets == "names" else (targets,)
    linears = [linear.name for linear in shape.targets(names)]
    config = peft.LoraConfig(r=8, target_modules="all-linear" if targets == "all-linear" else linears)
    adapted = peft.get_peft_model(model, config)
    trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    assert shape.lora_params(8, names) == trained
    assert shape_from_module(adapted, name) == shape
