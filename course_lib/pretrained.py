"""A pretrained model fine-tuned on the reader's own card, with what it writes before and after.

The model is named as on the Hugging Face Hub, or is a folder; nothing is downloaded but by this. On a card before
Ampere it computes in FP16 with loss scaling, from Ampere on in BF16, on a processor in FP32.
"""

import subprocess
import sys
import warnings
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import nn

from course_lib.errors import CourseError
from course_lib.finetune import finetune
from course_lib.gpu import inspect_machine, training_type
from course_lib.recipe import Recipe
from course_lib.training import autocast_of

PRECISION = {"bf16": "amp-bf16-over-bf16", "fp16": "amp-fp16", "fp32": "fp32"}
DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Finetuned(NamedTuple):
    """What came of it."""

    model: nn.Module  #: with its adapters
    before: str  #: how the base model went on from the prompt
    after: str
    curve: list[float]  #: loss of each update, nats a token


def finetune_pretrained(
    name: str,
    text: str,
    *,
    four_bit: bool = False,
    updates: int = 60,
    prompt: str = "def forward(self, x: Tensor) -> Tensor:\n",
    recipe: Recipe | None = None,
) -> Finetuned:
    """Put adapters beside every linear layer of a pretrained model, train them on ``text``, show the difference.

    Args:
        name: a model's name on the Hub, or a folder that holds it and its tokenizer.
        text: what it is trained on.
        four_bit: keep its weights in NF4; needs a CUDA card, and installs bitsandbytes where it is missing.
        updates: how many.
        prompt: what it goes on from.
        recipe: ``batch``, ``seq``, ``accum`` and the optimizer; 2 x 4 windows of 256 tokens by default.

    Raises:
        CourseError: 4 bits without a card, or a model that cannot be loaded.
    """
    kind = training_type(inspect_machine()).dtype
    recipe = recipe or Recipe(precision=PRECISION[kind], batch=4, seq=256, accum=2, lora_rank=16)
    model, tokenizer = load_pretrained(name, kind, four_bit=four_bit)
    before = go_on(model, tokenizer, prompt)
    model = _with_adapters(model, four_bit)
    scaler = torch.amp.GradScaler("cuda") if kind == "fp16" else None
    tokens = tokenizer(text)["input_ids"]
    autocast = autocast_of(Recipe(precision=PRECISION[kind]))
    curve = finetune(
        model, tokens, recipe, updates=updates, learning_rate=5e-4, autocast=autocast, scaler=scaler
    )
    after = go_on(model, tokenizer, prompt)
    print(f"\nbefore: {before}\n\nafter: {after}")
    return Finetuned(model, before, after, curve)


def load_pretrained(name: str, kind: str, *, four_bit: bool = False) -> tuple[Any, Any]:
    """The model, frozen and in the type to compute in, and its tokenizer."""
    import transformers

    where = "cuda" if torch.cuda.is_available() else "cpu"
    settings: dict[str, Any] = {}
    if four_bit:
        _need_bitsandbytes(where)
        settings["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=DTYPE[kind],
        )  # fmt: skip
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        # FP16 is not for stored weights: what is not quantised stays in FP32 and is cast by autocast.
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map=where, **settings)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CourseError(f"cannot load {name!r} ({reason}); expected a name on the Hub or a folder") from error
    return model, tokenizer


def go_on(model: Any, tokenizer: Any, prompt: str, tokens: int = 40) -> str:
    """What the model writes after ``prompt``: the likeliest token each time."""
    model.eval()
    asked = tokenizer(prompt, return_tensors="pt").to(model.device)
    with torch.no_grad():
        written = model.generate(
            **asked, max_new_tokens=tokens, do_sample=False, pad_token_id=tokenizer.eos_token_id
        )
    return str(tokenizer.decode(written[0, asked["input_ids"].shape[1] :], skip_special_tokens=True))


def _with_adapters(model: Any, four_bit: bool) -> Any:
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if four_bit:
            model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        lora = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        return peft.get_peft_model(model, lora)


def _need_bitsandbytes(where: str) -> None:
    if where != "cuda":
        raise CourseError("four_bit: 4-bit products need a CUDA card; leave four_bit away to train in 32 bits here")
    if not find_spec("bitsandbytes"):
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "bitsandbytes"], check=True)
