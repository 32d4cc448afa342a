"""From a preset's name, a Hugging Face config.json or a transformers model to a :class:`ModelShape`.

A config must state its sizes itself: transformers fills what is missing with the sizes of some 7B
model, and a forecast for that one would be wrong without a word. Only what a family itself leaves
open (key/value heads, head size, tied head, biases) may default, and does so as in transformers'
configuration_llama.py, _mistral.py, _qwen2.py and _gpt2.py.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import Repr
from typing import Any, NoReturn

from course_lib.errors import CourseError
from course_lib.presets import PRESETS, Config
from course_lib.shape import MOST_LAYERS, MOST_WIDTH, ModelShape

#: A config.json has some kilobytes; more is some other file.
MOST_FILE_BYTES = 2**20

_Names = dict[str, tuple[str, ...]]
#: What a family calls the sizes that it must state; where there are several names, any of them will do.
_LLAMA_SIZES: _Names = {
    "vocab": ("vocab_size",),
    "hidden": ("hidden_size",),
    "layers": ("num_hidden_layers",),
    "heads": ("num_attention_heads",),
    "ffn": ("intermediate_size",),
}
_GPT2_SIZES: _Names = {
    "vocab": ("vocab_size",),
    "hidden": ("n_embd", "hidden_size"),
    "layers": ("n_layer", "num_hidden_layers"),
    "heads": ("n_head", "num_attention_heads"),
}
_SIZES = {"llama": _LLAMA_SIZES, "mistral": _LLAMA_SIZES, "qwen2": _LLAMA_SIZES, "gpt2": _GPT2_SIZES}
COVERED_FAMILIES = tuple(_SIZES)
#: Key/value heads where the key is absent; where it is null, there are as many as query heads.
_KV_HEADS = {"mistral": 8, "qwen2": 32}
#: Settings that change which tensors a block makes, with the values that ModelShape describes.
_USUAL: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new",),
    "hidden_act": ("silu", "swish"),
    "add_cross_attention": (False,),
    "reorder_and_upcast_attn": (False,),
}


def read_model(model: str) -> ModelShape:
    """The shape of ``model``: a preset's name, or the path of a Hugging Face config.json.

    Raises:
        CourseError: as :func:`read_config` and :func:`shape_from_config`.
    """
    return shape_from_config(read_config(model), model)


def read_config(model: str) -> Config:
    """The config of ``model`` as transformers takes it, for any family; the covered ones with checked sizes.

    Raises:
        CourseError: no such preset or file; no JSON object; no ``model_type``; of a covered family,
            a size that is missing or no sensible number.
    """
    config = dict(PRESETS[model]) if model in PRESETS else _read_json(model)
    entries = _Entries(config, model)
    if entries.family in _SIZES:
        entries.sizes()
    return config


def why_not_covered(config: Mapping[str, Any]) -> str | None:
    """Why :class:`ModelShape` cannot describe this model; None where it can."""
    family = config.get("model_type")
    if family not in COVERED_FAMILIES:
        return f"model_type {_shown(family)}, while the closed form covers {', '.join(COVERED_FAMILIES)}"
    for key, usual in _USUAL.items():
        if config.get(key) not in (None, *usual):
            return f"{key} {_shown(config[key])}, while the closed form covers {' and '.join(map(str, usual))}"
    if family == "gpt2" and config.get("embd_pdrop", 0.1) != config.get("resid_pdrop", 0.1):
        return "embd_pdrop other than resid_pdrop, while the closed form covers one dropout for both"
    return None


def shape_from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape that a config of the Llama, Mistral, Qwen2 or GPT-2 family describes.

    Args:
        config: what config.json holds.
        name: what messages and reports call the model.

    Raises:
        CourseError: an uncovered family, a missing size, or an entry that is no sensible value.
    """
    entries = _Entries(config, name)
    sizes = entries.sizes() if entries.family in _SIZES else {}
    reason = why_not_covered(config)
    if reason:
        raise CourseError(f"{name} has {reason}; `course dryrun` takes any family that transformers can build")
    if entries.family == "gpt2":
        return _gpt2_shape(entries, sizes)
    return _llama_shape(entries, sizes)


def shape_from_module(module: Any, name: str | None = None) -> ModelShape:
    """The shape of a causal language model: from transformers, with or without peft's adapters, or the course's GPT.

    Args:
        module: an ``nn.Module`` with a Hugging Face ``.config`` and a language-model head, or with a ``.shape``.
        name: what reports call it; the class name by default.

    Raises:
        CourseError: no such config, no such head, or a family without a closed form.
    """
    name = name or type(module).__name__
    if isinstance(getattr(module, "shape", None), ModelShape):
        return replace(module.shape, name=name)
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_dict") or not hasattr(module, "get_output_embeddings"):
        raise CourseError(f"{name} has no Hugging Face config, expected a model from transformers; "
                          "for any other module, measure a step with course_lib.dryrun")  # fmt: skip
    if module.get_output_embeddings() is None:
        raise CourseError(f"{name} has no language-model head, expected a causal language model (…ForCausalLM)")
    return shape_from_config(config.to_dict(), name)


def require_stated_sizes(config: Mapping[str, Any], name: str) -> None:
    """Refuse a config, of whatever family, in which transformers would fill in a size of its own choice.

    Raises:
        CourseError: a ``model_type`` that the installed transformers does not know, or a missing size.
    """
    from transformers import AutoConfig  # only the dry run needs it

    entries = _Entries(config, name)
    try:
        default = AutoConfig.for_model(entries.family)
    except ValueError:
        raise CourseError(f"{name}: the installed transformers knows no model_type {_shown(entries.family)}; "
                          "update transformers or check the config") from None  # fmt: skip
    if "text_config" in default.sub_configs:
        text = config.get("text_config")
        if not isinstance(text, dict):
            raise CourseError(f"{name}: text_config is {_shown(text)}, expected the language model's config")
        require_stated_sizes({"model_type": default.text_config.model_type, **text}, f"{name} (text_config)")
        return
    for size in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        own_name = default.attribute_map.get(size, size)
        if getattr(default, own_name, None) is not None:
            entries.size(*dict.fromkeys((own_name, size)), most=MOST_LAYERS if "layers" in size else MOST_WIDTH)


def _llama_shape(entries: "_Entries", sizes: dict[str, int]) -> ModelShape:
    config, family = entries.config, entries.family
    open_kv_heads = sizes["heads"] if "num_key_value_heads" in config else _KV_HEADS.get(family, sizes["heads"])
    llama = family == "llama"
    attention_bias = llama and entries.flag("attention_bias", False)
    return ModelShape(
        name=entries.name,
        family="llama",
        **sizes,
        kv_heads=entries.size("num_key_value_heads", default=open_kv_heads),
        head_dim=entries.size("head_dim", default=0) or entries.even_head_dim(sizes),
        tied_head=entries.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias or family == "qwen2",
        attention_out_bias=attention_bias,
        mlp_bias=llama and entries.flag("mlp_bias", False),
        max_positions=entries.size("max_position_embeddings", default=0),
        attention_dropout=entries.probability("attention_dropout", 0.0),
        repeats_kv=not llama,
    )


def _gpt2_shape(entries: "_Entries", sizes: dict[str, int]) -> ModelShape:
    positions = entries.size("n_positions", "max_position_embeddings", default=1024)
    return ModelShape(
        name=entries.name,
        family="gpt2",
        **sizes,
        kv_heads=sizes["heads"],
        head_dim=entries.even_head_dim(sizes),
        ffn=entries.size("n_inner", default=4 * sizes["hidden"]),
        tied_head=entries.flag("tie_word_embeddings", True),
        repeats_kv=False,
        qkv_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        learned_positions=positions,
        max_positions=positions,
        dropout=entries.probability("resid_pdrop", 0.1),
        attention_dropout=entries.probability("attn_pdrop", 0.1),
    )


@dataclass(frozen=True)
class _Entries:
    """The entries of a config, each checked as it is read."""

    config: Mapping[str, Any]
    name: str

    @property
    def family(self) -> str:
        family = self.config.get("model_type")
        if not isinstance(family, str) or not family:
            self.refuse("model_type", "the name of a model family such as 'llama'")
        return family

    def sizes(self) -> dict[str, int]:
        """The sizes that the family must state, by the names that ModelShape gives them."""
        names = _SIZES[self.family]
        missing = [keys[0] for keys in names.values() if all(self.config.get(key) is None for key in keys)]
        if missing:
            raise CourseError(f"{self.name} lacks {', '.join(missing)}; a config.json must state the model's sizes")
        most = {"layers": MOST_LAYERS}
        return {size: self.size(*keys, most=most.get(size, MOST_WIDTH)) for size, keys in names.items()}

    def size(self, *keys: str, default: int | None = None, most: int = MOST_WIDTH) -> int:
        """A whole number from 1 to ``most`` under one of ``keys``; ``default`` where there is none or null."""
        stated = {key: self.config[key] for key in keys if self.config.get(key) is not None}
        if not stated and default is not None:
            return default
        for key in stated or keys:
            if type(stated.get(key)) is not int or not 1 <= stated[key] <= most:
                self.refuse(key, f"a whole number from 1 to {most}")
        if len(set(stated.values())) > 1:
            raise CourseError(f"{self.name}: {' and '.join(stated)} are two names of one size, but differ; keep one")
        return int(next(iter(stated.values())))

    def even_head_dim(self, sizes: dict[str, int]) -> int:
        """What each head gets where the heads share the width evenly."""
        if sizes["hidden"] % sizes["heads"]:
            raise CourseError(f"{self.name}: width {sizes['hidden']} does not divide among {sizes['heads']} heads; "
                              "correct one of them")  # fmt: skip
        return sizes["hidden"] // sizes["heads"]

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is not None and type(value) is not bool:
            self.refuse(key, "true or false")
        return default if value is None else bool(value)

    def probability(self, key: str, default: float) -> float:
        value = self.config.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not 0 <= value < 1:
            self.refuse(key, "a probability, at least 0 and below 1")
        return float(value)

    def refuse(self, key: str, expected: str) -> NoReturn:
        came = f"is {_shown(self.config[key])}" if key in self.config else "is missing"
        raise CourseError(f"{self.name}: {key} {came}, expected {expected}")


def _read_json(model: str) -> Config:
    expected = "the path of a Hugging Face config.json"
    path = Path(model)
    try:
        if path.is_dir():
            raise CourseError(f"{model!r} is a folder, expected {expected}; try {path / 'config.json'}")
        if not path.is_file():
            raise CourseError(f"no model {model!r}: expected a preset ({', '.join(PRESETS)}) or {expected}")
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise CourseError(f"cannot read {model!r} ({error.strerror}), expected {expected}") from None
    if len(content) > MOST_FILE_BYTES:
        raise CourseError(f"{model} is larger than {MOST_FILE_BYTES} bytes, expected {expected}")
    try:
        config = json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "not text" if isinstance(error, UnicodeDecodeError) else error
        raise CourseError(f"{model} is no JSON ({reason}), expected {expected}") from None
    if not isinstance(config, dict):
        raise CourseError(f"{model} holds {_shown(config)}, expected {expected}: one object with the model's sizes")
    return config


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _shown(value: object) -> str:
    """``value`` as a message shows it: in one line, and not too long."""
    short = Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    return short.repr(value)
