"""The self-check of lesson 00_start: what the course takes for granted."""

from typing import Any

from course_lib.i18n import N_, _
from course_lib.tasks import expect, task


@task(
    N_("A linear layer is a matrix and a vector: y = W x + b."),
    N_("W has one number for each pair of an input and an output, b one for each output."),
)
def linear_parameters(answer: Any) -> str:
    """``nn.Linear(1024, 4096)`` has 1024 x 4096 + 4096 parameters."""
    causes = {
        1024 * 4096: _("the bias is missing: one number for each output"),
        1024 * 4096 + 1024: _("the bias has one number for each output, not for each input"),
        1024 + 4096: _("inputs and outputs are multiplied: every output looks at every input"),
    }
    expect(answer, 1024 * 4096 + 4096, "nn.Linear(1024, 4096)", causes=causes, shown=_("another number of parameters"))
    return _("Every byte count in this course starts with such a count.")


@task(
    N_("Count the numbers first: multiply the three sizes."),
    N_("A float16 has 16 bits, and a byte has 8 of them. One MiB is 2**20 bytes."),
)
def tensor_mib(answer: Any) -> str:
    """A float16 tensor of shape [2, 1024, 4096] takes 16 MiB."""
    size_bytes = 2 * 1024 * 4096 * 2
    causes = {
        2 * size_bytes / 2**20: _("that is float32: float16 has 2 bytes"),
        size_bytes / 10**6: _("that is MB, of 10**6 bytes; a MiB has 2**20"),
        size_bytes: _("that is in bytes"),
    }
    shown = _("another size")
    expect(answer, size_bytes / 2**20, "[2, 1024, 4096], float16", "MiB", rel=1e-3, causes=causes, shown=shown)
    return _("The activations of a model are made of such tensors, dozens of them in each layer.")


@task(
    N_("What does backward() do with a .grad that is already there?"),
    N_("It adds to it. That is why training loops call zero_grad(), and why gradients can be accumulated."),
)
def gradient_after_two(answer: Any) -> str:
    """Two backward passes of 3 w without zero_grad leave w.grad at 6."""
    causes = {3: _("backward() adds to .grad, it does not replace it"), 9: _("gradients are added, not multiplied")}
    expect(answer, 6, "w.grad", causes=causes, shown=_("another number"))
    return _("Lesson 04 lives on this.")


@task(
    N_("GB means 10**9 bytes, GiB means 2**30."),
    N_("How many bytes are 28 GB? Divide them by 2**30."),
)
def gib_of_a_28_gb_file(answer: Any) -> str:
    """28e9 bytes are 26.08 GiB."""
    causes = {
        28: _("the two units differ by 7 %"),
        28 * 2**30 / 10**9: _("that is the other way round: a GiB is the larger unit"),
    }
    expect(answer, 28e9 / 2**30, "28 GB", "GiB", rel=1e-3, causes=causes, shown=_("another number"))
    return _("Files are sold in GB, graphics memory in GiB, even where the box says GB. The course always says which.")
