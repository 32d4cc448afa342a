"""The work of a training step in closed form: what a cut in memory costs in operations, without torch.

The same count as :mod:`course_lib.flops` takes on the real step: matrix products and attention, a multiplication and
an addition being two operations, attention's square counted in full.
"""

from course_lib.recipe import Recipe
from course_lib.shape import ModelShape

#: Attention's backward pass has five products for the forward pass's two.
_ATTENTION_BACKWARD = 2.5


def operations_per_token(shape: ModelShape, recipe: Recipe) -> float:
    """Floating-point operations of forward and backward pass, for each token that is trained on."""
    matrices = shape.layers * sum(linear.inputs * linear.outputs for linear in shape.linears)
    head = shape.vocab * shape.hidden
    attention = shape.layers * 4 * shape.query_width * recipe.seq
    adapters = shape.lora_params(recipe.lora_rank, recipe.target_names) if recipe.lora_rank else 0
    forward = 2 * (matrices + head + adapters) + attention
    # A gradient of every input; and of every weight that is trained.
    backward = 2 * (matrices + head + adapters) + _ATTENTION_BACKWARD * attention
    backward += 2 * (adapters if recipe.lora_rank else matrices + head)
    if not recipe.checkpoint_every:
        return forward + backward
    return forward + backward + 2 * (matrices + adapters) + attention - _not_run_again(shape, recipe)


def _not_run_again(shape: ModelShape, recipe: Recipe) -> int:
    """The last product of each segment: recomputation stops as soon as all that was kept is there again.

    Not where something after it was kept, a dropout's mask or an adapter's input, and not in reentrant checkpoints,
    which fused kernels came with (torch/utils/checkpoint.py).
    """
    closing = shape.linears[-1]
    adapted = recipe.lora_rank and closing in shape.targets(recipe.target_names)
    if shape.dropout or adapted or recipe.kernels == "fused":
        return 0
    return -(-shape.layers // recipe.checkpoint_every) * 2 * closing.inputs * closing.outputs
