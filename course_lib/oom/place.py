"""Where a traceback was when memory ran out, by the names of what was called."""

import re
from enum import Enum, auto


class Where(Enum):
    """The part of a training script that asked for memory."""

    STEP = auto()
    LOAD = auto()
    LOSS = auto()
    ATTENTION = auto()
    BACKWARD = auto()
    UNKNOWN = auto()


#: The last call that one of these names wins: a traceback ends where memory ran out.
_NAMES = (
    (Where.STEP, r"torch/optim/|optimizer\.step\(|bitsandbytes/optim|_foreach_|exp_avg|in adamw?\b"),
    (Where.LOAD, r"from_pretrained|load_state_dict|torch/serialization|torch\.load\(|prepare_model_for_kbit|"
                 r"module\._apply|\.cuda\(\)|in convert\b"),
    (Where.LOSS, r"cross_entropy|loss_utils|log_softmax|logits\.float\(|lm_head"),
    (Where.ATTENTION, r"scaled_dot_product|attn_weights|eager_attention|torch\.baddbmm|query.{0,12}@.{0,12}key"),
    (Where.BACKWARD, r"\.backward\(|torch/autograd/"),
)  # fmt: skip


def place_in(text: str) -> Where:
    """The part that asked for memory, as far as the traceback in ``text`` names it."""
    ends = [(match.end(), place) for place, names in _NAMES for match in re.finditer(names, text)]
    return max(ends, key=lambda found: found[0], default=(0, Where.UNKNOWN))[1]
