"""How a model is trained: every choice that moves memory, in one frozen record.

The field metadata carries the help text, so the command line, the widgets and the docs are made
from the same list. Combinations that cannot exist are refused here; what an instrument cannot
predict yet is refused by the instrument.
"""

import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from course_lib.errors import CourseError

PRECISIONS = ("bf16", "fp32", "amp-fp16", "amp-bf16", "amp-bf16-over-bf16", "master-bf16")
OPTIMIZERS = ("adamw", "sgd", "sgd-momentum", "adamw-8bit", "paged-adamw-8bit", "adafactor")
LOSSES = ("hf", "hf-4.48", "fused-ce", "fused-linear-ce")
#: Upper bounds that no real run reaches: beyond them a number is a slip of the keyboard.
MOST = {"batch": 2**16, "seq": 2**24, "accum": 2**16, "lora_rank": 2**14}
MOST_TOKENS = 2**28  #: in a micro-batch; the sizes of its tensors still fit into 64 bits


def _choice(help_text: str, *choices: str) -> Any:
    return field(default=choices[0], metadata={"help": help_text, "choices": choices})


def _value(default: Any, help_text: str, metavar: str) -> Any:
    return field(default=default, metadata={"help": help_text, "metavar": metavar})


@dataclass(frozen=True)
class Recipe:
    """Raises :class:`CourseError` for values and combinations that no training run can have."""

    precision: str = _choice(
        "amp-X: fp32 weights under autocast; amp-bf16-over-bf16: autocast over bf16 weights; "
        "master-bf16: resident bf16 weights with fp32 copies in the optimizer",
        *PRECISIONS,
    )
    optimizer: str = _choice("the update rule", *OPTIMIZERS)
    optimizer_impl: str = _choice(
        "foreach holds one temporary as large as what is trained, forloop one as large as the "
        "largest tensor, fused none",
        "foreach", "fused", "forloop",
    )  # fmt: skip
    lora_rank: int = _value(0, "rank of low-rank adapters; 0 trains all weights", "R")
    lora_targets: str = _value("attention", "attention, all-linear, or names with commas between", "T")
    adapter_dtype: str = _choice("type in which adapters are kept", "fp32", "bf16")
    lora_dropout: float = _value(0.05, "dropout before the adapters; above 0 its size makes no difference", "P")
    quant: str = _choice("how frozen weights are stored", "none", "nf4", "int8")
    double_quant: bool = _value(False, "quantise the quantisation constants too (nf4)", "")
    kbit_prepare: bool = _value(False, "norms, embedding and head to fp32, as peft prepares k-bit models", "")
    checkpoint: str = _value("none", "none, block, or every:K (K blocks a segment)", "C")
    attention: str = _choice("sdpa: what CUDA would choose for the type", "sdpa", "flash", "eager")
    loss: str = _value("hf", f"{', '.join(LOSSES)}, chunked:N or logits:N (N bytes a logit)", "L")
    kernels: str = _choice("fused: RMSNorm, RoPE, LoRA kernels as Liger, Unsloth or foak fuse them", "stock", "fused")
    batch: int = _value(1, "sequences in a micro-batch", "N")
    seq: int = _value(2048, "tokens in a sequence", "N")
    accum: int = _value(1, "micro-batches per update", "N")

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_type_and_choice(each, getattr(self, each.name))
        for name, most in MOST.items():
            least = 0 if name == "lora_rank" else 1
            if not least <= getattr(self, name) <= most:
                raise CourseError(f"{name}: got {getattr(self, name)}, expected a whole number from {least} to {most}")
        if self.tokens > MOST_TOKENS:
            raise CourseError(f"batch {self.batch} of seq {self.seq}: expected at most {MOST_TOKENS} tokens together")
        if not 0 <= self.lora_dropout < 1:
            raise CourseError(f"lora_dropout: got {self.lora_dropout}, expected a number from 0 to below 1")
        self.checkpoint_every  # noqa: B018 - reading it checks the text
        self.loss_number  # noqa: B018
        if not self.target_names:
            raise CourseError("lora_targets: got no name, expected attention, all-linear or names like q_proj,v_proj")
        self._refuse_impossible()

    def _refuse_impossible(self) -> None:
        refusals = (
            (self.attention == "flash" and self.precision == "fp32",
             "attention flash needs 16-bit numbers; choose a 16-bit precision, or attention sdpa or eager"),
            (self.double_quant and self.quant != "nf4",
             "double_quant quantises the constants of nf4; add quant nf4 or drop double_quant"),
            (self.kbit_prepare and self.quant == "none",
             "kbit_prepare prepares quantised weights; add quant nf4 or int8, or drop kbit_prepare"),
            (self.quant != "none" and not self.lora_rank,
             f"quant {self.quant}: quantised weights cannot be trained; add lora_rank, for example 16"),
            (self.precision == "master-bf16" and self.lora_rank > 0,
             "master-bf16 copies trained weights in fp32, adapters are fp32 already; choose precision bf16 for LoRA"),
            (self.precision == "master-bf16" and self.optimizer in ("adamw-8bit", "paged-adamw-8bit", "adafactor"),
             f"master-bf16 with optimizer {self.optimizer} does not exist; choose adamw, sgd or sgd-momentum"),
            (self.lora_rank > 0 and self.adapter_dtype == "bf16" and self.weight_bytes == 4,
             "adapter_dtype bf16 over fp32 weights: adapters are fp32 or as the weights; choose adapter_dtype fp32"),
            (self.quant == "int8" and self.adapter_dtype == "bf16",
             "adapter_dtype bf16 with quant int8: peft keeps these adapters in fp32; choose adapter_dtype fp32"),
            (self.optimizer == "adafactor" and self.optimizer_impl == "fused",
             "adafactor has no fused implementation; choose optimizer_impl foreach or forloop"),
        )  # fmt: skip
        for impossible, why in refusals:
            if impossible:
                raise CourseError(why)

    @property
    def weight_bytes(self) -> int:
        """Bytes of one stored (unquantised) base weight."""
        return 4 if self.precision in ("fp32", "amp-fp16", "amp-bf16") else 2

    @property
    def norm_bytes(self) -> int:
        """Bytes of one element of a norm, and of a number in the residual stream that the norms are added to."""
        return 4 if self.kbit_prepare else self.weight_bytes

    @property
    def table_bytes(self) -> int:
        """Bytes of one element of the embedding and of the head."""
        return 2 if self.head_back_to_16_bit else self.norm_bytes

    @property
    def autocast(self) -> bool:
        """Whether the forward pass runs under autocast."""
        return self.precision.startswith("amp-")

    @property
    def compute_bytes(self) -> int:
        """Bytes of one number that a matrix product returns; fp32 where k-bit preparation feeds it fp32."""
        return 4 if self.precision == "fp32" or (self.kbit_prepare and not self.autocast) else 2

    @property
    def trained_bytes(self) -> int:
        """Bytes of one trained parameter: an adapter's under LoRA, else a base weight's."""
        if not self.lora_rank:
            return self.weight_bytes
        return 4 if self.adapter_dtype == "fp32" else self.weight_bytes

    @property
    def head_back_to_16_bit(self) -> bool:
        """Whether k-bit preparation leaves embedding and head in 16 bit, norms in fp32.

        peft turns all that is not quantised to fp32 (prepare_model_for_kbit_training in peft/utils/other.py);
        trl's SFTTrainer casts 4-bit models' embedding and head back where it trains under bf16 autocast
        (peft_module_casting_to_bf16 in trl/trainer/utils.py).
        """
        return self.kbit_prepare and self.quant == "nf4" and self.precision == "amp-bf16-over-bf16"

    @property
    def checkpoint_every(self) -> int:
        """Blocks per checkpointed segment; 0 without checkpointing."""
        if self.checkpoint in ("none", "block"):
            return int(self.checkpoint == "block")
        return _number_after("checkpoint", self.checkpoint, "every", "none, block or every:K with K from 1", 4)

    @property
    def loss_number(self) -> int | None:
        """The N of chunked:N or logits:N; None for the named losses."""
        if self.loss in LOSSES:
            return None
        kind = self.loss.partition(":")[0]
        expected = f"{', '.join(LOSSES)}, chunked:N or logits:N with N from 1"
        if kind not in ("chunked", "logits"):
            raise CourseError(f"loss: got {self.loss!r}, expected {expected}")
        return _number_after("loss", self.loss, kind, expected, 4 if kind == "chunked" else 2)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The LoRA targets as written: a group's name, or the names of linear layers."""
        return tuple(name.strip() for name in self.lora_targets.split(",") if name.strip())

    @property
    def tokens(self) -> int:
        """Tokens in one micro-batch."""
        return self.batch * self.seq

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def flags_beyond(self, other: "Recipe") -> str:
        """What ``other`` lacks of this recipe, as flags of the command line: ``--lora-rank 16 --checkpoint block``."""
        theirs = other.to_dict()
        changed = {name: value for name, value in self.to_dict().items() if value != theirs[name]}
        return " ".join(flag(name) + ("" if value is True else f" {value}") for name, value in changed.items())


def flag(name: str) -> str:
    """A field's flag: ``lora_rank`` is ``--lora-rank``."""
    return "--" + name.replace("_", "-")


def _check_type_and_choice(each: Any, value: Any) -> None:
    expected = type(each.default)
    if type(value) is not expected and not (expected is float and type(value) is int):
        raise CourseError(f"{each.name}: got {value!r}, expected a value like {each.default!r}")
    choices = each.metadata.get("choices")
    if choices and value not in choices:
        raise CourseError(f"{each.name}: got {value!r}, expected one of {', '.join(choices)}")


def _number_after(name: str, text: str, kind: str, expected: str, most_digits: int) -> int:
    """K of ``every:K``; ``most_digits`` keeps absurd numbers out."""
    match = re.fullmatch(rf"{kind}:([1-9][0-9]{{0,{most_digits - 1}}})", text)
    if not match:
        raise CourseError(f"{name}: got {text!r}, expected {expected}")
    return int(match[1])
