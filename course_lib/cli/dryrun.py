"""``course dryrun``: a training step on the meta device, for any model that transformers can build."""

import argparse
import warnings
from pathlib import Path
from typing import Any

from course_lib.allocator import replay
from course_lib.cli import flags
from course_lib.errors import CourseError
from course_lib.hf_config import read_config, require_stated_sizes, shape_from_config, why_not_covered
from course_lib.presets import Config
from course_lib.recipe import Recipe
from course_lib.report import Report
from course_lib.trace import Trace

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "dryrun",
        usage="course dryrun MODEL [recipe flags] [--gpu NAME | --budget-gib X] [--json] [--plot F]",
        description="Run a training step without memory, on PyTorch's meta device, and read its peak off.",
        epilog="example: course dryrun llama-7b --checkpoint block --gpu a100-80gb --plot step.svg",
    )
    flags.add_model(parser)
    flags.add_recipe_flags(parser)
    flags.add_card_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON, sizes in bytes")
    parser.add_argument("--plot", metavar="F", help=f"draw live bytes by account into F ({', '.join(PLOT_SUFFIXES)})")


def run(args: argparse.Namespace) -> int:
    config = read_config(args.model)
    shape = None if why_not_covered(config) else shape_from_config(config, args.model)
    recipe, card = flags.recipe_of(args, shape), flags.card_of(args)
    plot = _plot_path(args.plot)
    _hush_libraries()
    if shape is None:
        require_stated_sizes(config, args.model)
    try:
        with flags.speaking_in_flags():
            trace, params, trainable = _measure(config, recipe)
    except CourseError:
        raise
    except Exception as error:
        if shape is not None:  # a family that is tested here: a bug of ours, to be seen whole
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise CourseError(f"{args.model}: transformers cannot build or train this model as asked ({reason}); "
                          "correct the config, or try a shorter --seq") from error  # fmt: skip
    # Where only the bytes of the logits are known, nobody can say which tensors these are, nor replay them.
    reserved = None if recipe.loss.startswith("logits") else replay(trace).reserved_bytes
    report = Report(args.model, params, trainable, recipe, trace, card, reserved)
    if plot:
        from course_lib.plots import save_timeline

        save_timeline(trace, plot, card)
    if args.json:
        import json

        print(json.dumps(report.to_dict(), indent=2))
    else:
        from course_lib.cli.show import show_report

        show_report(report)
    return report.exit_code


def _measure(config: Config, recipe: Recipe) -> tuple[Trace, int, int]:
    """The trace, and the parameters of the base model and of what is trained, counted on the real module."""
    from course_lib.dryrun import dry_run_config
    from course_lib.dryrun.hf_model import build_model, depth_of

    trace = dry_run_config(config, recipe)
    parameters = list(build_model(config, recipe, depth_of(config)).parameters())
    trainable = sum(each.numel() for each in parameters if each.requires_grad)
    total = sum(each.numel() for each in parameters)
    return trace, total - trainable if recipe.lora_rank else total, trainable


def _hush_libraries() -> None:
    """transformers and torch remark on settings that a dry run has no use for; stderr is for what went wrong."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    warnings.simplefilter("ignore")


def _plot_path(text: str | None) -> Path | None:
    """Where to draw; refused before the work is done, not after."""
    if text is None:
        return None
    path = Path(text)
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise CourseError(f"--plot: got {text!r}, expected a file name that ends in {', '.join(PLOT_SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir():
        raise CourseError(f"--plot: cannot write {text!r}; expected a file in a folder that exists")
    return path
