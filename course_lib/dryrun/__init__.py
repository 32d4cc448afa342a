"""A training step on the meta device: real code, real sizes, no memory, no GPU.

:func:`dry_run` takes any model and step; :func:`dry_run_config` takes a Hugging Face configuration and a
recipe, and needs about a second for a 7B, since two shallow copies of the model tell how the trace
grows with depth (:mod:`~course_lib.dryrun.grow`).

Limits: PyTorch on one CUDA device, eager, or where a module of one's own is wrapped as ``torch.compile`` would cut it
(:func:`~course_lib.dryrun.compiled.compiled`); no offloading. Answers read off a tensor
(``.item()``) are True or 0. What CUDA kernels take inside themselves is added for cuBLAS and for
FlashAttention's backward pass; other kernels' scratch (sorting in the embedding's backward pass, partial sums of a
layer norm's) is below a thousandth of a step and is not. A GradScaler's scalars are left out.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from course_lib.accounts import ACCOUNTS, Account, Moment
from course_lib.cublas import CUBLAS_WORKSPACE_BYTES, CUBLAS_WORKSPACES
from course_lib.dryrun.autocast import autocast_on_meta
from course_lib.dryrun.cuda_kernels import cuda_on_meta, scratch_bytes
from course_lib.dryrun.fused import rotated_in_place
from course_lib.dryrun.grow import at_depth
from course_lib.dryrun.hf_model import batch_of, build_model, depth_of, flash_in_transformers, pattern_of
from course_lib.dryrun.losses import loss_of
from course_lib.dryrun.quantized import quantised_products
from course_lib.errors import CourseError
from course_lib.meter import Meter
from course_lib.recipe import Recipe
from course_lib.trace import Event, Tensor, Trace
from course_lib.training import autocast_of, make_optimizer, train_step


def dry_run(
    model: nn.Module, step: Callable[[], Any], optimizer: Any = None, *, imitate: str = "cuda", warm_up: int = 1
) -> Trace:
    """The trace of ``step()`` on a model that lives on the meta device.

    Args:
        model: any module on ``torch.device("meta")``.
        step: runs one training step of ``model``, everything it needs on the meta device, too.
        optimizer: the optimizer that ``step`` uses.
        imitate: whose kernels and autocast lists to follow, ``cuda`` or ``cpu``.
        warm_up: steps to run before the one that counts; Adam's state appears in the first.
    """
    if any(parameter.device.type != "meta" for parameter in model.parameters()):
        raise CourseError('dry_run: the model has memory; build it within torch.device("meta"), or probe it instead')
    with on_meta(imitate):
        for _ in range(warm_up):
            step()
        with Meter("meta", model, optimizer, scratch_bytes if imitate == "cuda" else None) as meter:
            step()
    return meter.trace()


@contextmanager
def on_meta(imitate: str = "cuda") -> Iterator[None]:
    """Within it, meta tensors take the kernels and the autocast of ``imitate``: ``cuda`` or ``cpu``."""
    with cuda_on_meta(imitate), autocast_on_meta(imitate):
        yield


def dry_run_config(config: dict[str, Any], recipe: Recipe, *, all_layers: bool = False) -> Trace:
    """The trace of the second training step of the model that ``config`` describes.

    Args:
        config: a Hugging Face configuration, as config.json holds it.
        recipe: how it is trained.
        all_layers: run every block instead of growing the trace from two shallow models.
    """
    _refuse_unsupported(recipe)
    layers = depth_of(config)

    def run(layers: int) -> Trace:
        return _run_at_depth(config, recipe, layers)

    if all_layers:
        return with_cublas(run(layers))
    first, period = pattern_of(config, recipe)
    return with_cublas(at_depth(run, layers, period, first))


def _run_at_depth(config: dict[str, Any], recipe: Recipe, layers: int) -> Trace:
    model = build_model(config, recipe, layers)
    optimizer = make_optimizer(model, recipe)
    batches = [batch_of(recipe) for _ in range(recipe.accum)]

    def step() -> None:
        train_step(model, optimizer, batches, loss_of(recipe), autocast_of(recipe))

    with stand_ins(model, recipe):
        return dry_run(model, step, optimizer)


@contextmanager
def stand_ins(model: nn.Module, recipe: Recipe) -> Iterator[None]:
    """Within it, what ``recipe`` asks of libraries whose kernels need a card runs on the meta device."""
    with ExitStack() as stack:
        stack.enter_context(flash_in_transformers(recipe))
        if recipe.quant != "none":
            stack.enter_context(quantised_products())
        if recipe.kernels == "fused":
            stack.enter_context(rotated_in_place(model))
        yield


def with_cublas(trace: Trace) -> Trace:
    """cuBLAS's two workspaces, which stay once the first step has run."""
    made = (Tensor(ACCOUNTS.index(Account.TEMPORARY), CUBLAS_WORKSPACE_BYTES, "cublas"),) * CUBLAS_WORKSPACES
    total = CUBLAS_WORKSPACES * CUBLAS_WORKSPACE_BYTES
    workspaces = Event(Moment.LOAD, "cublas workspaces", (0, 0, 0, 0, total), born=made)
    return Trace((workspaces, *trace.events), trace.static_bytes)


def _refuse_unsupported(recipe: Recipe) -> None:
    import transformers

    version = transformers.__version__
    if recipe.loss == "hf-4.48" and not version.startswith("4.48."):
        raise CourseError(f"the dry run does not support loss hf-4.48 with transformers {version}, whose own loss it "
                          "runs; choose loss hf, or ask `course ledger`")  # fmt: skip
