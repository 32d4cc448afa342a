"""What a compiled module keeps in a dry run is what torch.compile keeps of the same module on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from course_lib.accounts import Account
from course_lib.dryrun import dry_run
from course_lib.dryrun.compiled import compiled
from course_lib.errors import CourseError

WIDTH, TOKENS = 64, 512


class Gated(nn.Module):
    """A norm that computes in fp32 and a gated MLP: eager code keeps much of it that a compiler computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.up, self.gate = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.scale
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def made(device: str) -> tuple[nn.Module, Tensor]:
    with torch.device(device):
        return Gated().bfloat16(), torch.zeros(TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)


def kept_sizes(run: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> list[int]:
    """Bytes of each tensor kept for the backward pass, parameters aside, each storage once."""
    own = {each.untyped_storage()._cdata for each in module.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run(x)
    del out
    return sorted(each.untyped_storage().nbytes() for key, each in kept.items() if key not in own)


def test_keeps_what_torch_compile_keeps() -> None:
    module, x = made("cpu")
    by_torch = kept_sizes(torch.compile(module, backend="aot_eager_decomp_partition"), module, x)
    module, x = made("meta")
    eager, ours = kept_sizes(module, module, x), kept_sizes(compiled(module), module, x)
    assert ours == by_torch
    assert sum(ours) < 0.8 * sum(eager)


def test_a_dry_run_of_blocks_that_are_compiled() -> None:
    with torch.device("meta"):
        blocks = [Gated().bfloat16() for _ in range(8)]
        x = torch.zeros(TOKENS, WIDTH, dtype=torch.bfloat16)

    def activations(layers: list[Any]) -> int:
        def step() -> None:
            hidden = x
            for layer in layers:
                hidden = layer(hidden)
            hidden.float().sum().backward()

        return dry_run(nn.ModuleList(blocks), step).at_peak[Account.ACTIVATIONS]

    assert activations([compiled(block) for block in blocks]) < 0.85 * activations(blocks)


class Chain(nn.Module):
    """An exponential in fp32 between two matrix products in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second((self.first(x).float() * 0.5).exp().bfloat16())


def test_what_passes_between_fused_operators_is_never_written() -> None:
    with torch.device("meta"):
        module = Chain().bfloat16()
        x = torch.zeros(TOKENS, WIDTH, dtype=torch.bfloat16)

    def sizes(run: Any) -> list[int]:
        trace = dry_run(module, lambda: run(x))
        return [tensor.size_bytes for event in trace.events for tensor in event.born if tensor.operator != "resident"]

    one = TOKENS * WIDTH * 2
    assert sizes(compiled(module)) == [one, one, one]  # the products, and what the second one reads
    assert sizes(module) == [one, 2 * one, 2 * one, 2 * one, one, one]  # fp32, halved, its exponential, bf16


def test_says_what_it_cannot_take() -> None:
    with pytest.raises(CourseError, match="got builtin_function_or_method, expected a module"):
        compiled(torch.relu)  # type: ignore[arg-type]
