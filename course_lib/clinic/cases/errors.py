"""Errors that PyTorch raises in the forward and in the backward pass."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.clinic.case import Case
from course_lib.clinic.patients import Adapter, batches, labels, sgd, vectors
from course_lib.clinic.reading import Reading
from course_lib.i18n import N_, _
from course_lib.models import next_token_loss


def bf16_layers_fed_with_fp32() -> None:
    _train_adapter(cast=False)


def bf16_layers_fed_with_bf16() -> None:
    _train_adapter(cast=True)


def _train_adapter(cast: bool) -> None:
    adapter, head = Adapter(64), nn.Linear(64, 8).bfloat16()
    model = nn.Sequential(adapter, head)
    optimizer = sgd(model)
    for x in vectors(2):
        hidden = adapter(x)  # FP32, since the adapter is
        F.cross_entropy(head(hidden.bfloat16() if cast else hidden).float(), labels(x)).backward()
        optimizer.step()
        optimizer.zero_grad()


def two_types_in_one_product(reading: Reading) -> str | None:
    if reading.error != "RuntimeError" or "dtype" not in reading.message:
        return None
    dtypes = sorted({str(each.dtype).removeprefix("torch.") for each in reading.pieces if each.dtype.is_floating_point})
    if len(dtypes) < 2:
        return None
    return _("an operator refused its inputs' types; the run holds tensors in {types}").format(types=", ".join(dtypes))


class Recurrent(nn.Module):
    """Reads a chunk of a long text, and hands its state on to the next."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.cell, self.head = nn.Embedding(256, 64), nn.RNNCell(64, 64), nn.Linear(64, 256)

    def forward(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for token in tokens.unbind(1):  # [B, T]
            state = self.cell(self.embedding(token), state)
            outputs.append(state)
        return self.head(torch.stack(outputs, 1)), state


def carries_its_graph_along() -> None:
    model, state = Recurrent(), torch.zeros(4, 64)
    optimizer = sgd(model)
    for tokens, targets in batches(3, length=8):
        logits, state = model(tokens, state)
        next_token_loss(logits, targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def carries_the_state_alone() -> None:
    model, state = Recurrent(), torch.zeros(4, 64)
    optimizer = sgd(model)
    for tokens, targets in batches(3, length=8):
        logits, state = model(tokens, state.detach())
        next_token_loss(logits, targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def goes_back_too_far(reading: Reading) -> str | None:
    if "backward through the graph a second time" not in reading.message:
        return None
    return _("backward pass {number} reached into a graph whose tensors were freed in an earlier step").format(
        number=len(reading.backwards)
    )


CASES = (
    Case(
        name="mixed-types",
        branch=("an error", "in the forward pass"),
        symptom=N_("RuntimeError: mat1 and mat2 must have the same dtype"),
        words=N_(
            "expected scalar type Float but found Half; expected scalar type BFloat16 but found Float; input type "
            "and weight type should be the same; dtype mismatch"
        ),
        cause=N_("weights of one type are fed with activations of another, outside autocast"),
        change=N_("run the forward pass under torch.autocast, or cast the input where the layer begins"),
        surer=N_("print(x.dtype, layer.weight.dtype) at the line that the traceback names"),
        unit="02_mixed_precision",
        sign=two_types_in_one_product,
        broken=bf16_layers_fed_with_fp32,
        mended=bf16_layers_fed_with_bf16,
        sure="certain",
        messages=("mat1 and mat2 must have the same dtype", "expected scalar type", "should be the same"),
    ),
    Case(
        name="state-not-detached",
        branch=("an error", "in the backward pass"),
        symptom=N_("Trying to backward through the graph a second time"),
        words=N_(
            "retain_graph=True; hidden state; RNN; detach; saved intermediate values freed; memory and time grow "
            "with retain_graph"
        ),
        cause=N_("a state that is carried from step to step brings its graph along, and that graph was freed"),
        change=N_(
            "state = state.detach() before the next step; retain_graph=True hides the error, and memory grows instead"
        ),
        surer=N_("print state.grad_fn at the beginning of a step: it must be None"),
        unit="06_troubleshooting",
        sign=goes_back_too_far,
        broken=carries_its_graph_along,
        mended=carries_the_state_alone,
        sure="certain",
        messages=("Trying to backward through the graph a second time",),
    ),
)
