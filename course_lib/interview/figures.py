"""The figures in the interview's answers: expressions that the ledger evaluates when an answer is shown.

An answer says ``{peak("llama-7b", precision="bf16") / GB:.1f} GB``; what stands in braces is Python, cut down to
numbers, words, arithmetic and the functions of this file. Nothing here needs torch. The tests evaluate the same
expressions once more, with the dry run and PyTorch's own counters in place of these functions.

>>> print(fill('A 7B in 16 bits has {2 * 7e9 / GB:.0f} GB.'))
A 7B in 16 bits has 14 GB.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from course_lib import ledger
from course_lib.accounts import Account
from course_lib.cards import find_card
from course_lib.device import device_range
from course_lib.errors import CourseError
from course_lib.hf_config import read_model
from course_lib.ledger import Bill, Instant
from course_lib.ledger.head import logit_bytes
from course_lib.recipe import Recipe
from course_lib.units import BLOCK_BYTES, GB, GIB, MB, MIB

PLACEHOLDER = re.compile(r"\{([^{}]+?)(?::([^:{}\"]+))?\}")  #: expression and, after a colon, its format
#: torch.amp.GradScaler's init_scale and growth_interval (torch/amp/grad_scaler.py).
FIRST_SCALE, GROWTH_INTERVAL = 2**16, 2000


@cache
def bill(model: str, **recipe: Any) -> Bill:
    """The ledger's bill of a preset; fields of :class:`Recipe` as in code."""
    return ledger.predict(read_model(model), Recipe(**recipe))


def params(model: str) -> int:
    """Parameters of a preset."""
    return read_model(model).params


def block_params(model: str) -> int:
    """Parameters of one block."""
    return read_model(model).block_params


def lora_params(model: str, rank: int, targets: str = "attention") -> int:
    """Parameters of the adapters."""
    return read_model(model).lora_params(rank, (targets,))


def peak(model: str, **recipe: Any) -> int:
    """Peak bytes of tensors in a training step."""
    return bill(model, **recipe).peak_bytes


def moment(model: str, **recipe: Any) -> str:
    """In which moment the peak is."""
    return bill(model, **recipe).peak_moment.value


def weights(model: str, **recipe: Any) -> int:
    """Bytes of weights, adapters included."""
    return bill(model, **recipe).static_bytes[Account.WEIGHTS]


def gradients(model: str, **recipe: Any) -> int:
    """Bytes of gradients."""
    return bill(model, **recipe).static_bytes[Account.GRADIENTS]


def optimizer(model: str, **recipe: Any) -> int:
    """Bytes of optimizer state."""
    return bill(model, **recipe).static_bytes[Account.OPTIMIZER]


def stays(model: str, **recipe: Any) -> int:
    """Bytes of weights, gradients and optimizer state together."""
    return sum(bill(model, **recipe).static_bytes.values())


def activations(model: str, **recipe: Any) -> int:
    """Bytes that the forward pass leaves behind for the backward pass."""
    return bill(model, **recipe).at(Instant.FORWARD_END)[Account.ACTIVATIONS]


def activation_share(model: str, **recipe: Any) -> float:
    """The same, as a fraction of all that is then there for more than a moment."""
    alive = bill(model, **recipe).at(Instant.FORWARD_END)
    return alive[Account.ACTIVATIONS] / (sum(alive.values()) - alive[Account.TEMPORARY])


def logits(model: str, **recipe: Any) -> float:
    """Bytes of the logits and the loss's copies of them where they are most."""
    chosen = Recipe(**recipe)
    forward, _kept, backward = logit_bytes(chosen)
    return max(forward, backward) * chosen.tokens * read_model(model).vocab


def used_low(model: str, **recipe: Any) -> int:
    """Bytes in use on the card at least: tensors and a CUDA context."""
    return _used(model, **recipe)[0]


def used_high(model: str, **recipe: Any) -> int:
    """Bytes in use on the card at most, with a large context and the allocator's slack."""
    return _used(model, **recipe)[1]


def usable(card: str) -> int:
    """Bytes that a card hands out, as CUDA reports them."""
    return find_card(card).usable_bytes


def kv_cache(model: str, batch: int, seq: int) -> int:
    """Bytes of keys and values in 16 bits: 2 x layers x key/value width x tokens x 2 B."""
    shape = read_model(model)
    return 2 * shape.layers * shape.kv_width * batch * seq * 2


def scores(model: str, seq: int) -> int:
    """Bytes of one layer's attention scores of one sequence in 16 bits: heads x seq^2 x 2 B."""
    return read_model(model).heads * seq**2 * 2


def operations(model: str, lora_rank: int = 0, checkpoint: str = "none", seq: int = 2048) -> float:
    """Floating-point operations of a step, a token: products and attention, two for a multiply-add.

    Forward 2 a weight, backward 4, or 2 where the weight is frozen; attention 4 x hidden x seq a layer, and 2.5 times
    that in the backward pass (flash attention computes its scores again). Checkpointing every block repeats the
    forward pass of the blocks without each block's last product (early stop in torch/utils/checkpoint.py).
    """
    shape = read_model(model)
    inside = shape.layers * sum(linear.params for linear in shape.linears)
    matrices = inside + shape.vocab * shape.hidden
    attention = shape.layers * 4 * shape.query_width * seq
    adapters = lora_params(model, lora_rank) if lora_rank else 0
    step = (4 if lora_rank else 6) * matrices + 3.5 * attention + 6 * adapters
    again = 2 * (inside - shape.layers * shape.linears[-1].params) + attention + 2 * adapters
    return step + (again if checkpoint == "block" else 0)


def zero(model_params: float, stage: int, cards: int) -> float:
    """Bytes on each card under ZeRO with mixed-precision Adam: 2 + 2 + 12 B a parameter.

    Rajbhandari et al. 2020, ZeRO, section 3.1 and figure 1: stage 1 shares out the optimizer's 12 bytes, stage 2 the
    gradients as well, stage 3 everything.
    """
    parts = (2, 2, 12)  # weights, gradients, FP32 copy with Adam's moments
    whole = parts[: 3 - stage]
    return model_params * (sum(whole) + (sum(parts) - sum(whole)) / cards)


def largest(exponent_bits: int, mantissa_bits: int) -> float:
    """The largest finite number of a binary format (IEEE 754-2019, section 3.3)."""
    return (2.0 - 2.0**-mantissa_bits) * 2.0 ** _bias(exponent_bits)


def smallest_normal(exponent_bits: int) -> float:
    """The smallest number with a full mantissa."""
    return 2.0 ** (1 - _bias(exponent_bits))


def smallest(exponent_bits: int, mantissa_bits: int) -> float:
    """The smallest positive number: subnormal, one bit is left."""
    return smallest_normal(exponent_bits) * 2.0**-mantissa_bits


def gap(exponent: int, mantissa_bits: int) -> float:
    """From 2^exponent to the next larger number."""
    return 2.0 ** (exponent - mantissa_bits)


def _bias(exponent_bits: int) -> int:
    return 2 ** (exponent_bits - 1) - 1


def _used(model: str, **recipe: Any) -> tuple[int, int]:
    found = bill(model, **recipe)
    return device_range(found.peak_bytes, found.static_bytes[Account.WEIGHTS] + found.static_bytes[Account.OPTIMIZER])


_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    params, block_params, lora_params, peak, moment, weights, gradients, optimizer, stays, activations,
    activation_share, logits, used_low, used_high, usable, kv_cache, scores, operations, zero, largest, smallest_normal,
    smallest, gap,
)  # fmt: skip
#: What an expression may name.
NAMES: Mapping[str, Any] = {
    **{each.__name__: each for each in _FUNCTIONS},
    "GB": GB, "GIB": GIB, "MB": MB, "MIB": MIB, "BLOCK_BYTES": BLOCK_BYTES, "FIRST_SCALE": FIRST_SCALE,
    "GROWTH_INTERVAL": GROWTH_INTERVAL,
}  # fmt: skip
_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Eq: operator.eq,
}  # fmt: skip


def fill(text: str) -> str:
    """``text`` with each expression in braces replaced by its value.

    Raises:
        CourseError: an expression names or does what is not allowed, or has no value.
    """
    return PLACEHOLDER.sub(lambda found: f"{evaluate(found[1]):{found[2] or ''}}", text)


def expressions(text: str) -> list[str]:
    """The expressions in ``text``, without their formats."""
    return [expression for expression, _format in PLACEHOLDER.findall(text)]


def evaluate(expression: str, names: Mapping[str, Any] = NAMES) -> Any:
    """The value of an expression: constants, arithmetic, one comparison, and what ``names`` holds.

    Raises:
        CourseError: it holds anything else, or a model or recipe that does not exist.
    """
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, names)
    except (SyntaxError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise CourseError(f"figure: {expression!r}: {error}") from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if callable(names.get(name)):
            given = {each.arg: _value(each.value, names) for each in keywords if each.arg}
            return names[name](*(_value(each, names) for each in args), **given)
    allowed = ", ".join(names)
    raise CourseError(f"figure: got {ast.unparse(node)!r}, expected arithmetic with numbers and {allowed}")
