"""What one transformer block keeps for its backward pass, and what that pass needs while it runs.

Every number is in bytes per token. Each line follows from one rule of autograd: an operator keeps
the inputs that the gradient of *another* input needs. A product keeps both factors, a matrix product
keeps its input only where its weight is trained, a sum keeps nothing. The lines are those of the
modelling code of transformers 5 (models/llama, models/gpt2) and of peft's LoRA layer; the dry run
executes that code, and tests hold the two together.

Symbols: H hidden width, F MLP width, A width of the queries, K width of the keys, N heads, S tokens
in a sequence, r rank; s bytes of a number in a matrix product, w bytes of one in the residual stream.
"""

from dataclasses import dataclass
from math import ceil

from course_lib.recipe import Recipe
from course_lib.shape import Linear, ModelShape

#: FlashAttention's backward pass: mha_bwd in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp
FLASH_ROW_BYTES = 4


@dataclass(frozen=True)
class Kept:
    """Something a block keeps between its forward and its backward pass."""

    part: str  #: norm1, attention, norm2 or mlp
    what: str
    bytes_per_token: float
    formula: str


@dataclass(frozen=True)
class Block:
    """One block of ``shape`` trained as ``recipe`` says."""

    shape: ModelShape
    recipe: Recipe

    @property
    def s(self) -> int:
        return self.recipe.compute_bytes

    @property
    def w(self) -> int:
        return self.recipe.weight_bytes

    @property
    def trains_all(self) -> bool:
        return not self.recipe.lora_rank

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """The linear layers that carry an adapter."""
        return () if self.trains_all else self.shape.targets(self.recipe.target_names)

    @property
    def adapter_s(self) -> int:
        """Bytes of a number in an adapter's product: fp32 unless autocast or the adapter's type says 16 bit."""
        return 2 if self.recipe.autocast else self.recipe.trained_bytes

    @property
    def attention_kind(self) -> str:
        """flash, efficient, or scores where the whole score matrix is built.

        With grouped-query attention only FlashAttention shares key and value heads, and it takes 16 bit
        only: in fp32 PyTorch falls back to the plain formula (sdp_utils.cpp; transformers passes enable_gqa).
        """
        if self.recipe.attention == "eager":
            return "scores"
        if self.s == 2:
            return "flash"
        return "efficient" if self.shape.heads == self.shape.kv_heads else "scores"

    @property
    def kept(self) -> list[Kept]:
        """Everything the block keeps, in the order of the forward pass."""
        mlp = self._gpt2_mlp() if self.shape.family == "gpt2" else self._gated_mlp()
        parts = [self.norm("norm1"), self._inputs("norm1"), self._attention(), self.norm("norm2")]
        parts += [self._inputs("norm2"), mlp, self._adapter_outputs()]
        return [kept for part in parts for kept in part if kept.bytes_per_token]

    @property
    def kept_bytes(self) -> float:
        return sum(kept.bytes_per_token for kept in self.kept)

    @property
    def cached_casts_bytes(self) -> int:
        """16-bit copies of the block's trained fp32 matrices, in bytes (not per token).

        Autocast makes them once and keeps them until its region ends, that is through the forward pass.
        """
        if not self.recipe.autocast or self.recipe.trained_bytes == 2:
            return 0
        if self.trains_all:
            return 2 * self._matrix_elements
        return 2 * sum(self.recipe.lora_rank * (linear.inputs + linear.outputs) for linear in self.adapted)

    @property
    def weight_casts_bytes(self) -> int:
        """The copies that the block's own backward pass needs: frozen fp32 weights are cast, too, but not cached."""
        frozen = 0 if self.trains_all or not self.recipe.autocast or self.w == 2 else 2 * self._matrix_elements
        return self.cached_casts_bytes + frozen

    @property
    def _matrix_elements(self) -> int:
        return sum(linear.inputs * linear.outputs for linear in self.shape.linears)

    @property
    def boundary_bytes(self) -> int:
        """What a checkpoint keeps instead: the residual stream at the block's door."""
        return self.w * self.shape.hidden

    def norm(self, name: str) -> list[Kept]:
        """What a norm keeps to be differentiated itself."""
        hidden, family = self.shape.hidden, self.shape.family
        if family == "gpt2" or self.recipe.kernels == "fused":
            # One kernel. It keeps its input; under autocast CUDA's layer norm takes an fp32 copy of it.
            width = 4 if family == "gpt2" and self.recipe.autocast else self.w
            return [
                Kept(name, "the norm's input", width * hidden, f"{width} H"),
                Kept(name, "row statistics", 8 if family == "gpt2" else 4, "one or two fp32 numbers"),
            ]
        normalised = self.w * hidden if self.trains_all else 0
        return [
            Kept(name, "the norm's input in fp32", 4 * hidden, "4 H"),
            Kept(name, "row statistics", 4, "one fp32 number"),
            Kept(name, "normalised input, for the norm's weight", normalised, "w H"),
        ]

    def _inputs(self, part: str) -> list[Kept]:
        """The norm's output, kept by the linear layers that read it."""
        group = "attention" if part == "norm1" else "mlp"
        readers = [
            linear for linear in self.shape.linears if linear.group == group and linear.inputs == self.shape.hidden
        ]
        readers = [linear for linear in readers if not linear.name.endswith(("o_proj", "c_proj", "down_proj"))]
        trained = [linear for linear in readers if self.trains_all or linear in self.adapted]
        copies, width = len(trained), self._input_width(norm_output=True)
        if not self._input_is_cast(norm_output=True):
            copies = min(copies, 1)
        formula = f"{width} H" if copies < 2 else f"{copies} copies x {width} H"
        return [
            Kept(part, "the norm's output, for the layers that read it", copies * width * self.shape.hidden, formula)
        ]

    def _input_is_cast(self, *, norm_output: bool) -> bool:
        """Whether each trained linear layer makes a copy of its input in another type, and keeps it."""
        if self.recipe.kernels == "fused" and not self.trains_all:
            return False
        if self.trains_all:  # autocast turns the fp32 norm output to 16 bit, once per reader
            return self.recipe.autocast and norm_output and (self.w == 4 or self.shape.family == "gpt2")
        if self.recipe.autocast:  # peft hands fp32 adapters an fp32 input, autocast takes it back to 16 bit
            return self.recipe.trained_bytes == 4 or (norm_output and self.shape.family == "gpt2")
        return self.recipe.trained_bytes != self.w

    def _input_width(self, *, norm_output: bool) -> int:
        if self._input_is_cast(norm_output=norm_output) and not self.trains_all and not self.recipe.autocast:
            return self.recipe.trained_bytes
        return self.s

    def _second_input(self, part: str, name: str, width: int, already_kept: bool) -> list[Kept]:
        """The input of the projection that closes attention or MLP; ``already_kept`` by what made it."""
        linear = next(linear for linear in self.shape.linears if linear.name.endswith(name))
        if not (self.trains_all or linear in self.adapted):
            return []
        if self._input_is_cast(norm_output=False):
            size = self._input_width(norm_output=False)
        else:
            size = 0 if already_kept else self.s
        return [Kept(part, f"input of {linear.name}", size * width, f"{size} x {width}")]

    def _attention(self) -> list[Kept]:
        shape, s, kind = self.shape, self.s, self.attention_kind
        queries, keys = shape.query_width, shape.kv_width
        closing = "c_proj" if shape.family == "gpt2" else "o_proj"
        linear = next(each for each in shape.linears if each.group == "attention" and each.name.endswith(closing))
        if kind != "scores":
            return [
                Kept("attention", "queries, keys, values", s * (queries + 2 * keys), "s (A + 2 K)"),
                Kept("attention", "attention's output", s * queries, "s A"),
                Kept("attention", "one number a row", FLASH_ROW_BYTES * shape.heads, "4 N"),
                *self._second_input("attention", linear.name, queries, already_kept=True),
            ]
        per_score = self._score_bytes()
        scores = per_score * shape.heads * self.recipe.seq
        return [
            Kept("attention", "queries, keys, values, once per head", 3 * s * queries, "3 s A"),
            Kept("attention", "scores after softmax", scores, f"{per_score} N S"),
            *self._second_input("attention", linear.name, queries, already_kept=False),
        ]

    def _score_bytes(self) -> int:
        """Bytes kept per score: softmax's output, its copy for the product, dropout's output and mask."""
        gpt2, s = self.shape.family == "gpt2", self.s
        softmax = 4 if not gpt2 or self.recipe.autocast else s
        copy = s if (not gpt2 and s == 2) else 0
        dropout = s + 1 if gpt2 and self.shape.attention_dropout else 0
        return softmax + copy + dropout

    def _gated_mlp(self) -> list[Kept]:
        ffn, s = self.shape.ffn, self.s
        return [
            Kept("mlp", "gate, silu(gate) and up", 3 * s * ffn, "3 s F"),
            *self._second_input("mlp", "down_proj", ffn, already_kept=False),
        ]

    def _gpt2_mlp(self) -> list[Kept]:
        ffn, s, hidden = self.shape.ffn, self.s, self.shape.hidden
        # gelu_new keeps x, x/2, tanh and 1 + tanh; the cube is on autocast's fp32 list, and so is what follows.
        gelu = 14 if self.recipe.autocast and self.shape.gelu_steps > 1 else self.shape.gelu_steps * s
        closing = [linear for linear in self.shape.linears if linear.group == "mlp"][1]
        dropout = 2 * hidden if self.shape.dropout else 0
        product = self._second_input("mlp", closing.name, ffn, already_kept=False)
        if self.recipe.autocast and product:  # the product is fp32 and is cast once for the projection
            product = [Kept("mlp", f"input of {closing.name}", 2 * ffn, "2 F")]
        return [
            Kept("mlp", "what the activation keeps", gelu * ffn, f"{gelu} F"),
            *product,
            Kept("mlp", "dropout masks", dropout, "2 x 1 H"),
        ]

    def _adapter_outputs(self) -> list[Kept]:
        size = self.adapter_s * self.recipe.lora_rank * len(self.adapted)
        return [Kept("attention", "outputs of the adapters' A", size, f"{self.adapter_s} r a target")]

    @property
    def forward_bytes(self) -> float:
        """The most that is live per token, beyond other blocks, while the block runs forward and keeps."""
        return self.kept_bytes + self._adapter_extra()

    @property
    def backward_bytes(self) -> float:
        """The most that is live per token, beyond other blocks, while the block's backward pass runs.

        Under checkpointing that includes running it forward once more.
        """
        after_mlp = sum(each.bytes_per_token for each in self.kept if each.part in ("norm1", "attention"))
        again = self.forward_bytes + self._waiting_gradients() if self.recipe.checkpoint_every else 0
        return max(self.kept_bytes + self._mlp_extra(), after_mlp + self._attention_extra(), again)

    def _mlp_extra(self) -> float:
        """Gradients of the MLP's inner tensors, three at once, and the residual stream's.

        The product's gradient takes the place of the product, where that was kept.
        """
        wide = 4 if self.shape.family == "gpt2" and self.recipe.autocast else self.s
        closing = [each for each in self.kept if each.part == "mlp" and each.what.startswith("input of")]
        freed = sum(each.bytes_per_token for each in closing)
        return 3 * wide * self.shape.ffn + self.w * self.shape.hidden - freed

    def _attention_extra(self) -> float:
        shape, s, kind = self.shape, self.s, self.attention_kind
        stream = (self.w + s) * shape.hidden
        if kind == "scores":  # softmax's gradient in fp32, before and after
            return stream + 8 * shape.heads * self.recipe.seq
        gradients = s * (shape.query_width + 2 * shape.kv_width)
        if kind == "efficient":
            return stream + gradients
        rows = ceil(self.recipe.seq / 128) * 128 / self.recipe.seq
        expanded = 2 * s * shape.query_width if shape.heads != shape.kv_heads else 0
        head_dim = ceil(shape.head_dim / 32) * 32
        return stream + gradients + expanded + 4 * rows * shape.heads * (head_dim + 1)

    @property
    def _adapter_width(self) -> int:
        """Bytes of a number in an adapter's output; fp32 adapters over 16-bit weights promote it."""
        return max(self.s, self.adapter_s)

    def _adapter_extra(self) -> float:
        """What an adapter of the MLP takes while it runs forward: its output, the same scaled, and what waits."""
        if self.recipe.kernels == "fused":
            return 0
        return max(0, self._closing_adapter_extra(), self._up_adapter_extra())

    def _closing_adapter_extra(self) -> float:
        closing, ffn, hidden = self.shape.linears[-1], self.shape.ffn, self.shape.hidden
        if closing not in self.adapted:
            return 0
        cast = self._input_is_cast(norm_output=False)
        product = self.s * ffn if cast else 0
        fp32_copy = 4 * ffn if cast and self.recipe.autocast else 0
        stream = self.w * hidden if self.w == 2 and self.shape.family == "llama" else 0
        return product + fp32_copy + (self.s + 2 * self._adapter_width) * hidden + stream

    def _up_adapter_extra(self) -> float:
        linears = {linear.name: linear for linear in self.adapted}
        if "up_proj" not in linears or self._adapter_width == self.s:
            return 0
        not_yet = self._adapter_width * self.shape.ffn if "down_proj" in linears else 0
        return 2 * self._adapter_width * self.shape.ffn + 2 * self.w * self.shape.hidden - not_yet

    def _waiting_gradients(self) -> float:
        """Gradients that wait while a block is recomputed: the residual stream's, and its copy for an fp32 adapter."""
        copies = 4 + self.w if self.shape.linears[-1] in self.adapted and self.adapter_s != self.w else 0
        return (self.w + copies) * self.shape.hidden
