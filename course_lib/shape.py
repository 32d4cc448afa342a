"""What a transformer is made of: the sizes from which every byte count follows.

Two families are described in closed form. *Llama-like* (Llama, Mistral, Qwen2): RMSNorm, rotary
positions, grouped-query attention, a gated MLP. *GPT-2-like*: LayerNorm, learned positions, a
fused query-key-value projection, a GELU MLP, dropout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple

from course_lib.errors import CourseError

Family = Literal["llama", "gpt2"]
#: Upper bounds that no real model reaches: beyond them a number is a slip, or an attack on our patience.
MOST_WIDTH, MOST_LAYERS = 2**24, 2**12


class Linear(NamedTuple):
    """One matrix product of a block: ``[tokens, inputs] -> [tokens, outputs]``."""

    name: str
    inputs: int
    outputs: int
    bias: bool
    group: Literal["attention", "mlp"]

    @property
    def params(self) -> int:
        return self.inputs * self.outputs + self.bias * self.outputs


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer; all counts are numbers of elements, not bytes."""

    name: str
    family: Family
    vocab: int  #: V, rows of the embedding and of the head
    hidden: int  #: H, width of the residual stream
    layers: int  #: L, number of blocks
    heads: int  #: query heads
    kv_heads: int  #: key and value heads (fewer than heads: grouped-query attention)
    head_dim: int
    ffn: int  #: width of the MLP's inner layer
    tied_head: bool  #: the head shares the embedding's weight
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    learned_positions: int = 0  #: rows of the position embedding; 0 with rotary positions
    max_positions: int = 0  #: the context the model was made for; 0 where unknown
    dropout: float = 0.0  #: after the embedding, the attention's output and the MLP
    attention_dropout: float = 0.0
    repeats_kv: bool = False  #: transformers before 4.48 gave FlashAttention a copy of keys and values per query head
    gelu_steps: int = 4  #: operators of a GPT-2-like MLP's activation: gelu_new is written out in four, gelu is one

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn"):
            value, most = getattr(self, name), MOST_LAYERS if name == "layers" else MOST_WIDTH
            if type(value) is not int or not 1 <= value <= most:
                raise CourseError(f"{self.name}: {name} is {value!r}, expected a whole number from 1 to {most}")
        if self.family == "llama" and self.head_dim % 2:
            raise CourseError(f"{self.name}: head_dim is {self.head_dim}, expected an even number for rotary positions")
        if self.heads % self.kv_heads:
            raise CourseError(f"{self.name}: {self.heads} heads cannot share {self.kv_heads} key/value heads evenly")

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @cached_property
    def linears(self) -> tuple[Linear, ...]:
        """The matrix products of one block, in the order in which the forward pass meets them."""
        if self.family == "gpt2":
            return (
                Linear("c_attn", self.hidden, 3 * self.hidden, True, "attention"),
                Linear("attn.c_proj", self.hidden, self.hidden, True, "attention"),
                Linear("c_fc", self.hidden, self.ffn, True, "mlp"),
                Linear("mlp.c_proj", self.ffn, self.hidden, True, "mlp"),
            )
        return (
            Linear("q_proj", self.hidden, self.query_width, self.qkv_bias, "attention"),
            Linear("k_proj", self.hidden, self.kv_width, self.qkv_bias, "attention"),
            Linear("v_proj", self.hidden, self.kv_width, self.qkv_bias, "attention"),
            Linear("o_proj", self.query_width, self.hidden, self.attention_out_bias, "attention"),
            Linear("gate_proj", self.hidden, self.ffn, self.mlp_bias, "mlp"),
            Linear("up_proj", self.hidden, self.ffn, self.mlp_bias, "mlp"),
            Linear("down_proj", self.ffn, self.hidden, self.mlp_bias, "mlp"),
        )

    @property
    def norm_params(self) -> int:
        """Elements of one normalisation layer (LayerNorm has a bias, RMSNorm has none)."""
        return self.hidden * (2 if self.family == "gpt2" else 1)

    @cached_property
    def parameter_tensors(self) -> Mapping[str, tuple[int, ...]]:
        """Every parameter tensor of the model by name, with its shape; blocks are written once with ``*``."""
        tensors: dict[str, tuple[int, ...]] = {"embedding": (self.vocab, self.hidden)}
        if self.learned_positions:
            tensors["positions"] = (self.learned_positions, self.hidden)
        for norm in ("blocks.*.norm1", "blocks.*.norm2", "final_norm"):
            tensors[f"{norm}.weight"] = (self.hidden,)
            if self.family == "gpt2":
                tensors[f"{norm}.bias"] = (self.hidden,)
        for linear in self.linears:
            tensors[f"blocks.*.{linear.name}.weight"] = (linear.outputs, linear.inputs)
            if linear.bias:
                tensors[f"blocks.*.{linear.name}.bias"] = (linear.outputs,)
        if not self.tied_head:
            tensors["head"] = (self.vocab, self.hidden)
        return tensors

    def parameter_sizes(self) -> list[int]:
        """The number of elements of each parameter tensor of the whole model."""
        sizes = []
        for name, shape in self.parameter_tensors.items():
            sizes += [prod(shape)] * (self.layers if name.startswith("blocks.") else 1)
        return sizes

    @property
    def block_params(self) -> int:
        return 2 * self.norm_params + sum(linear.params for linear in self.linears)

    @property
    def params(self) -> int:
        """Trainable parameters of the whole model; a tied head counts once."""
        return sum(self.parameter_sizes())

    def targets(self, names: tuple[str, ...]) -> tuple[Linear, ...]:
        """The linear layers of a block that LoRA targets name: ``attention``, ``all-linear``, or names.

        A name matches as in peft: the layer's own name or the end of its dotted path.
        """
        known = [linear.name for linear in self.linears]
        chosen: list[Linear] = []
        for name in names:
            matches = [
                linear
                for linear in self.linears
                if name in ("all-linear", linear.group if name == "attention" else linear.name)
                or linear.name.endswith(f".{name}")
            ]
            if not matches:
                raise CourseError(
                    f"lora_targets: {self.name} has no linear layer {name!r}; "
                    f"expected attention, all-linear, or names from {', '.join(known)}"
                )
            chosen += matches
        return tuple(linear for linear in self.linears if linear in chosen)

    def lora_params(self, rank: int, names: tuple[str, ...]) -> int:
        """Parameters of the adapters: A is [rank, inputs] and B is [outputs, rank] for each target."""
        return self.layers * sum(rank * (t.inputs + t.outputs) for t in self.targets(names))
