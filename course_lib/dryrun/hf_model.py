"""A transformers model on the meta device, put together as a recipe says: the library's own code, no weights."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import lcm
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_lib.dryrun.fused import fuse
from course_lib.dryrun.quantized import quantise
from course_lib.errors import CourseError
from course_lib.recipe import Recipe
from course_lib.training import weight_dtype

#: Families to whose FlashAttention transformers 4.45, which fused kernels patched, gave keys once per query head.
REPEAT_KV = ("mistral", "mixtral", "qwen2", "phi3")


def build_model(config: dict[str, Any], recipe: Recipe, layers: int, device: str = "meta") -> nn.Module:
    """The model of ``config``, cut or stretched to ``layers`` blocks, ready to train as ``recipe`` says.

    On a device other than ``meta`` its memory is there, and whatever numbers lay in it are the weights.
    """
    import transformers

    hf_config = _config_object(config)
    _set_depth(hf_config, layers)
    hf_config.use_cache = False
    with default_dtype(weight_dtype(recipe)), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Left alone, transformers takes sdpa, and eager for the few models that have no other.
        asked = {"attn_implementation": "eager"} if recipe.attention == "eager" else {}
        model = transformers.AutoModelForCausalLM.from_config(hf_config, **asked)
    if getattr(model, "loss_type", None) is None:  # GPT-2's name does not say it; transformers would remark on that
        model.loss_type = "ForCausalLM"
    model.train()
    if device != "meta":
        model.to_empty(device=device)
        model.tie_weights()
    if recipe.quant != "none":
        quantise(model, recipe)
    if recipe.attention == "flash":
        model.config._attn_implementation = "flash_attention_2"  # its function is ours within flash_in_transformers
    if recipe.checkpoint_every == 1:
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": _reentrant(recipe)})
    if recipe.checkpoint_every and _reentrant(recipe) and recipe.lora_rank:
        model.enable_input_require_grads()  # or a reentrant checkpoint over a frozen embedding trains nothing
    if recipe.kbit_prepare:
        _prepare_for_kbit(model, recipe)
    if recipe.lora_rank:
        model = _with_adapters(model, recipe)
    if recipe.checkpoint_every > 1:
        _checkpoint_segments(model, recipe.checkpoint_every, _reentrant(recipe))
    if recipe.kernels == "fused":
        fuse(model, recipe)
    return model


def depth_of(config: dict[str, Any]) -> int:
    """The number of blocks that ``config`` describes."""
    return _config_object(config).num_hidden_layers


def pattern_of(config: dict[str, Any], recipe: Recipe) -> tuple[int, int]:
    """How many blocks come before the model repeats itself, and after how many blocks it does.

    Two blocks are alike that have the same parameters and the same entries in the configuration's lists (windowed and
    full attention in turn, experts in every second block, dense blocks first); K blocks of a segment belong together.
    """
    hf_config, every = _config_object(config), max(1, recipe.checkpoint_every)
    layers = hf_config.num_hidden_layers
    blocks = _blocks(build_model(config, Recipe(), layers))[2]
    lists = [values for _, values in _lists(hf_config)]
    kinds = [
        ([(name, each.shape) for name, each in block.named_parameters()], [values[i] for values in lists])
        for i, block in enumerate(blocks)
    ]
    for first in range(layers):
        rest = kinds[first:]
        for period in range(1, len(rest) // 2 + 1):
            if all(a == b for a, b in zip(rest, rest[period:], strict=False)):
                return -(-first // every) * every, lcm(period, every)
    return 0, layers


def _lists(hf_config: Any) -> list[tuple[str, list[Any]]]:
    """What the configuration says block by block."""
    layers = hf_config.num_hidden_layers
    return [(name, value) for name, value in vars(hf_config).items()
            if isinstance(value, list) and len(value) == layers > 1]  # fmt: skip


@contextmanager
def flash_in_transformers(recipe: Recipe) -> Iterator[None]:
    """transformers' ``flash_attention_2`` without its package: PyTorch's flash operator takes the same memory."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

    before = functions["flash_attention_2"]
    functions["flash_attention_2"] = partial(_flash_attention, repeats=recipe.kernels == "fused")
    try:
        yield
    finally:
        functions["flash_attention_2"] = before


def batch_of(recipe: Recipe, device: str = "meta") -> dict[str, Tensor]:
    """One micro-batch as a causal language model takes it: three int64 tensors ``[batch, seq]``."""
    size = (recipe.batch, recipe.seq)
    return {
        name: torch.ones(size, dtype=torch.long, device=device) for name in ("input_ids", "attention_mask", "labels")
    }


def _config_object(config: dict[str, Any]) -> Any:
    import transformers

    settings = {key: value for key, value in config.items() if key not in ("model_type", "dtype", "torch_dtype")}
    try:
        return transformers.AutoConfig.for_model(config["model_type"], **copy.deepcopy(settings))
    except Exception as error:  # the library validates in many ways
        raise CourseError(f"transformers {transformers.__version__} cannot read this configuration: {error}") from error


def _set_depth(hf_config: Any, layers: int) -> None:
    for name, values in _lists(hf_config):
        setattr(hf_config, name, [values[i % len(values)] for i in range(layers)])
    hf_config.num_hidden_layers = layers


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Within it, what is made without a type gets this one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _prepare_for_kbit(model: nn.Module, recipe: Recipe) -> None:
    """What is not quantised becomes fp32 (peft); under bf16 autocast trl takes embedding and head back to 16 bit."""
    import peft

    peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if recipe.head_back_to_16_bit:
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):  # type: ignore[operator]
            table.to(torch.bfloat16)


def _with_adapters(model: nn.Module, recipe: Recipe) -> nn.Module:
    import peft

    names = recipe.target_names
    targets: Any = sorted(_targets(model, names)) if names != ("all-linear",) else "all-linear"
    lora = peft.LoraConfig(
        r=recipe.lora_rank, lora_alpha=2 * recipe.lora_rank, lora_dropout=recipe.lora_dropout,
        target_modules=targets, task_type="CAUSAL_LM",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(model, lora, autocast_adapter_dtype=recipe.adapter_dtype == "fp32")


def _targets(model: nn.Module, names: tuple[str, ...]) -> set[str]:
    """peft's target names: ``attention`` stands for the matrix products inside modules called attention."""
    products = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) or _is_conv1d(module)]
    chosen: set[str] = set()
    for name in names:
        if name == "attention":
            matches = {path.rpartition(".")[2] for path in products if _is_attention(path)}
            matches = {f"attn.{match}" if match == "c_proj" else match for match in matches}
        else:
            matches = {name} if any(path == name or path.endswith(f".{name}") for path in products) else set()
        if not matches:
            known = ", ".join(sorted({path.rpartition(".")[2] for path in products}))
            raise CourseError(f"lora_targets: the model has no linear layer {name!r}; it has {known}")
        chosen |= matches
    return chosen


def _is_attention(path: str) -> bool:
    owner = path.rpartition(".")[0]
    return "attn" in owner or "attention" in owner


def _is_conv1d(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"  # GPT-2's linear layer, with its weight transposed


class _Segment(nn.Module):
    """Consecutive blocks behind one checkpoint; called as a single block is called."""

    def __init__(self, blocks: list[nn.Module], reentrant: bool) -> None:
        super().__init__()
        self.blocks, self.reentrant = nn.ModuleList(blocks), reentrant

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # what the model asks its blocks for, such as attention_type
            blocks: Any = super().__getattr__("blocks")
            return getattr(blocks[0], name)

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(partial(self._run, **kwargs), hidden, *args, use_reentrant=self.reentrant)

    def _run(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        for block in self.blocks:
            out = block(hidden, *args, **kwargs)
            hidden = out[0] if isinstance(out, tuple) else out
        return out


def _reentrant(recipe: Recipe) -> bool:
    """The fused kernels came with transformers before 5, whose checkpoints are reentrant unless asked otherwise."""
    return recipe.kernels == "fused"


def _checkpoint_segments(model: nn.Module, every: int, reentrant: bool) -> None:
    """Puts each ``every`` consecutive blocks behind one checkpoint."""
    owner, name, blocks = _blocks(model)
    segments = [_Segment(list(blocks[i : i + every]), reentrant) for i in range(0, len(blocks), every)]
    setattr(owner, name, nn.ModuleList(segments))


def _blocks(model: nn.Module) -> tuple[nn.Module, str, nn.ModuleList]:
    """The model's blocks: the list of modules that holds the most parameters; and where it hangs."""
    return max(
        (
            (owner, name, child)
            for owner in model.modules()
            for name, child in owner.named_children()
            if isinstance(child, nn.ModuleList)
        ),
        key=lambda found: sum(each.numel() for each in found[2].parameters()),
    )


def _flash_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, dropout: float = 0.0,
    scaling: float | None = None, *, repeats: bool = False, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """``[B, heads, T, D]`` in, ``[B, T, heads, D]`` out; key and value heads are not repeated but by old code."""
    if query.dtype is torch.float32:  # as transformers does for its flash kernels
        query, key, value = (part.to(torch.bfloat16) for part in (query, key, value))
    if repeats and module.config.model_type in REPEAT_KV:
        times = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(times, dim=1) for part in (key, value))
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    return flash(query, key, value, dropout, True, False, scale=scaling)[0].transpose(1, 2), None
