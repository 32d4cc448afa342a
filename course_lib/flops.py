"""The work of a training step, counted: the price of a cut in memory, where it has one.

PyTorch's own counter watches the real step on the meta device. Work grows evenly with depth, so two shallow
copies of the model say it for any number of blocks. What is counted is matrix products and attention; a
multiplication and an addition are two operations.
"""

import json
from dataclasses import replace
from functools import cache
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from course_lib.dryrun import on_meta, stand_ins
from course_lib.dryrun.hf_model import batch_of, build_model, depth_of, pattern_of
from course_lib.recipe import Recipe
from course_lib.training import autocast_of


def step_flops(config: dict[str, Any], recipe: Recipe) -> int:
    """Floating-point operations of one update: forward and backward of all its micro-batches.

    Args:
        config: a Hugging Face configuration, as config.json holds it.
        recipe: how it is trained.
    """
    # Quantised weights are multiplied as matrices of 16 bits: the same products, and bitsandbytes need not be here.
    return _counted(json.dumps(config), replace(recipe, quant="none", double_quant=False, kbit_prepare=False))


@cache
def _counted(config_json: str, recipe: Recipe) -> int:
    config = json.loads(config_json)
    layers, (before, period) = depth_of(config), pattern_of(config, recipe)
    if layers <= before + 2 * period:
        return recipe.accum * _flops_at_depth(config, recipe, layers)
    first = before + (layers - before) % period + period
    one, two = (_flops_at_depth(config, recipe, depth) for depth in (first, first + period))
    return recipe.accum * (one + (two - one) * ((layers - first) // period))


def _flops_at_depth(config: dict[str, Any], recipe: Recipe, layers: int) -> int:
    model = build_model(config, recipe, layers)
    with stand_ins(model, recipe), on_meta(), FlopCounterMode(display=False) as counter:
        with autocast_of(recipe)():
            loss = model(**batch_of(recipe)).loss
        loss.backward()
    return counter.get_total_flops()
