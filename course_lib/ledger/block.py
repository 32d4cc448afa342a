"""What one transformer block keeps for its backward pass.

Every number is in bytes per token. Each line follows from one rule of autograd: an operator keeps
the inputs that the gradient of *another* input needs. A product keeps both factors, a matrix product
keeps its input only where its weight is trained, a sum keeps nothing. The lines are those of the
modelling code of transformers 5 (models/llama, models/gpt2) and of peft's LoRA layer; the dry run
executes that code, and tests hold the two together. ``kernels fused`` is what foak and Liger make of
transformers 4.45, the version that they patched and were measured with.

Symbols: H hidden width, F MLP width, A width of the queries, K width of the keys, N heads, S tokens
in a sequence, r rank; w bytes of a number in the residual stream, s of one in attention, m of one in the MLP.
"""

from dataclasses import dataclass
from functools import cached_property

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
        """Bytes of a number that attention reads; FlashAttention is always given 16 bit."""
        return 2 if self.recipe.attention == "flash" else self.recipe.compute_bytes

    @property
    def m(self) -> int:
        """Bytes of a number between the MLP's products; quantised products return their input's type."""
        return self.recipe.compute_bytes if self.recipe.quant == "none" else self.w

    @property
    def w(self) -> int:
        return self.recipe.norm_bytes

    @property
    def trains_all(self) -> bool:
        return not self.recipe.lora_rank

    @cached_property
    def adapted(self) -> tuple[Linear, ...]:
        """The linear layers that carry an adapter."""
        return () if self.trains_all else self.shape.targets(self.recipe.target_names)

    @property
    def adapter_s(self) -> int:
        """Bytes of a number in an adapter's product: fp32 unless autocast or the adapter's type says 16 bit."""
        return 2 if self.recipe.autocast else self.recipe.trained_bytes

    @property
    def one_kernel_adapters(self) -> bool:
        """Whether adapter and matrix are one operator, which keeps their common input and no product of its own.

        foak fuses them over quantised matrices, Unsloth wherever there is no dropout; Liger does not.
        """
        return self.recipe.kernels == "fused" and (self.recipe.quant != "none" or not self.recipe.lora_dropout)

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

    @cached_property
    def kept(self) -> list[Kept]:
        """Everything the block keeps, in the order of the forward pass."""
        mlp = self._gpt2_mlp() if self.shape.family == "gpt2" else self._gated_mlp()
        parts = [self.norm("norm1"), self._norm_output("norm1"), self._attention(), self.norm("norm2")]
        parts += [self._norm_output("norm2"), mlp, self._adapter_outputs()]
        return [kept for part in parts for kept in part if kept.bytes_per_token]

    @cached_property
    def kept_bytes(self) -> float:
        return sum(kept.bytes_per_token for kept in self.kept)

    @property
    def cached_casts_bytes(self) -> int:
        """16-bit copies of the block's trained fp32 matrices, in bytes (not per token).

        Autocast makes them once and keeps them until its region ends, that is through the forward pass. Where adapter
        and matrix are one operator, this casts for itself, one matrix at a time.
        """
        if not self.recipe.autocast or self.recipe.trained_bytes == 2 or self.one_kernel_adapters:
            return 0
        if self.trains_all:
            return 2 * self._matrix_elements
        return 2 * sum(self.recipe.lora_rank * (linear.inputs + linear.outputs) for linear in self.adapted)

    @property
    def weight_casts_bytes(self) -> int:
        """The copies that the block's own backward pass needs: frozen fp32 weights are cast, too, but not cached."""
        if self.trains_all or not self._casts_matrices:
            return self.cached_casts_bytes
        alone = [linear for linear in self.shape.linears if not (self.one_kernel_adapters and linear in self.adapted)]
        return self.cached_casts_bytes + 2 * sum(linear.inputs * linear.outputs for linear in alone)

    @property
    def _casts_matrices(self) -> bool:
        return self.recipe.autocast and self.recipe.weight_bytes == 4 and self.recipe.quant == "none"

    @property
    def _matrix_elements(self) -> int:
        return sum(linear.inputs * linear.outputs for linear in self.shape.linears)

    @property
    def dequantised_bytes(self) -> int:
        """The largest matrix that is made anew for each of its products, in their type (bytes, not per token)."""
        if self.recipe.quant != "none":
            made: tuple[Linear, ...] = self.shape.linears
        else:
            made = self.adapted if self.one_kernel_adapters and self._casts_matrices else ()
        return self.product_bytes * max((linear.inputs * linear.outputs for linear in made), default=0)

    @property
    def product_bytes(self) -> int:
        """Bytes of a number in a quantised product: its input's type, 16 bit under autocast."""
        return 2 if self.recipe.autocast else self.w

    @property
    def shared_with_checkpoint_bytes(self) -> int:
        """What the first norm keeps of the checkpoint itself: the stream, where no copy in another type is made."""
        one_kernel = self.shape.family == "gpt2" or self.recipe.kernels == "fused"
        copies = self.shape.family == "gpt2" and self.recipe.autocast and self.w == 2
        return self.boundary_bytes if self.w == 4 or (one_kernel and not copies) else 0

    @property
    def int8_inputs_bytes(self) -> int:
        """What int8 products keep whether checkpointed or not.

        bitsandbytes' MatMul8bitLt holds its input as a plain attribute, which non-reentrant checkpointing cannot see.
        """
        if self.recipe.quant != "int8":
            return 0
        return 2 * self.w * self.shape.hidden + self.s * self.shape.query_width + self.m * self.shape.ffn

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

    def _norm_output(self, part: str) -> list[Kept]:
        """The norm's output, kept by the linear layers that read it."""
        group = "attention" if part == "norm1" else "mlp"
        readers = self._linears(group)[:-1]
        layer_norm_in_fp32 = self.shape.family == "gpt2" and self.recipe.autocast
        flow = 4 if layer_norm_in_fp32 else self.w
        return self._kept_input(part, "the norm's output, for the layers that read it", readers, flow)

    def _kept_input(
        self, part: str, what: str, readers: list[Linear], flow: int, *, already_kept: bool = False
    ) -> list[Kept]:
        """What ``readers`` keep of one input that comes with ``flow`` bytes a number.

        A trained weight keeps its input, and so does an int8 one; under autocast each reader of an fp32 input makes,
        and keeps, a 16-bit copy of its own. An adapter keeps its input in its own type: peft turns the
        input to the adapter's type, autocast takes it back to 16 bit, and each turn is a copy.
        """
        base = self.trains_all or self.recipe.quant == "int8"
        casts = self.trains_all and self.recipe.autocast and flow == 4
        copies, width = (len(readers), 2) if casts else (int(base and not already_kept), flow)
        size = copies * width
        adapted = len([linear for linear in readers if linear in self.adapted])
        if adapted and self.one_kernel_adapters:
            dropped = adapted * flow if self.recipe.lora_dropout else 0
            size += dropped + (0 if base or already_kept else flow)
        elif adapted and self.adapter_copies_input(flow):
            size += adapted * (self.adapter_s + self.mask_bytes)
        elif adapted and not (base or already_kept):
            size += flow
        inputs = readers[0].inputs
        return [Kept(part, what, size * inputs, f"{size} x {inputs:,}")]

    @property
    def mask_bytes(self) -> int:
        """Bytes a number of the mask that an adapter's dropout keeps."""
        return 1 if self.recipe.lora_dropout else 0

    def adapter_copies_input(self, flow: int) -> bool:
        """Whether an adapter makes a copy of its input, and keeps it; dropout always makes one."""
        if self.one_kernel_adapters:
            return False
        if self.recipe.lora_dropout:
            return True
        there_and_back = self.recipe.autocast and self.recipe.quant == "none" and self.recipe.trained_bytes == 4
        return there_and_back or flow != self.adapter_s

    @property
    def key_width(self) -> int:
        """Numbers a token in the keys, and in the values, as attention is given them."""
        repeated = self.shape.repeats_kv and self.recipe.attention == "flash" and self.recipe.kernels == "fused"
        return self.shape.query_width if repeated else self.shape.kv_width

    def _linears(self, group: str) -> list[Linear]:
        return [linear for linear in self.shape.linears if linear.group == group]

    def _attention(self) -> list[Kept]:
        shape, s, kind = self.shape, self.s, self.attention_kind
        queries, keys = shape.query_width, self.key_width
        closing = self._linears("attention")[-1:]
        what = f"input of {closing[0].name}"
        if kind != "scores":
            return [
                Kept("attention", "queries, keys, values", s * (queries + 2 * keys), "s (A + 2 K)"),
                Kept("attention", "attention's output", s * queries, "s A"),
                Kept("attention", "one number a row", FLASH_ROW_BYTES * shape.heads, "4 N"),
                *self._kept_input("attention", what, closing, s, already_kept=True),
            ]
        per_score = self.score_bytes()
        scores = per_score * shape.heads * self.recipe.seq
        return [
            Kept("attention", "queries, keys, values, once per head", 3 * s * queries, "3 s A"),
            Kept("attention", "scores after softmax", scores, f"{per_score} N S"),
            *self._kept_input("attention", what, closing, s),
        ]

    @property
    def softmax_bytes(self) -> int:
        """Bytes of a score after softmax: transformers' Llama asks for fp32, GPT-2 gets it from autocast only."""
        return 4 if self.shape.family == "llama" or self.recipe.autocast else self.s

    def score_bytes(self) -> int:
        """Bytes kept per score: softmax's output; what the product reads; the mask of dropout."""
        copy = self.s if self.s != self.softmax_bytes else 0
        return self.softmax_bytes + (self.s + 1 if self.shape.attention_dropout else copy)

    def _gated_mlp(self) -> list[Kept]:
        ffn, closing = self.shape.ffn, self._linears("mlp")[-1:]
        return [
            Kept("mlp", "gate, silu(gate) and up", 3 * self.m * ffn, "3 m F"),
            *self._kept_input("mlp", f"input of {closing[0].name}", closing, self.m),
        ]

    def _gpt2_mlp(self) -> list[Kept]:
        ffn, hidden, closing = self.shape.ffn, self.shape.hidden, self._linears("mlp")[-1:]
        # gelu_new keeps x, x/2, tanh and 1 + tanh; the cube is on autocast's fp32 list, and so is what follows.
        in_fp32 = self.recipe.autocast and self.shape.gelu_steps > 1
        gelu = 14 if in_fp32 else self.shape.gelu_steps * self.m
        dropout = 2 * hidden if self.shape.dropout else 0
        return [
            Kept("mlp", "what the activation keeps", gelu * ffn, f"{gelu} F"),
            *self._kept_input("mlp", f"input of {closing[0].name}", closing, 4 if in_fp32 else self.m),
            Kept("mlp", "dropout masks", dropout, "2 x 1 H"),
        ]

    def _adapter_outputs(self) -> list[Kept]:
        products = 0 if self.one_kernel_adapters else len(self.adapted)
        size = self.adapter_s * self.recipe.lora_rank * products
        return [Kept("attention", "outputs of the adapters' A", size, f"{self.adapter_s} r a target")]
