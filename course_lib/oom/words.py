"""What is said about a cause, with the message's own figures, in the reader's language."""

from collections.abc import Iterator
from math import isqrt

from course_lib.i18n import _
from course_lib.oom.causes import Cause
from course_lib.oom.message import CONTEXT_BYTES, OomMessage
from course_lib.oom.place import Where
from course_lib.oom.signs import Place, Sign
from course_lib.units import KIB, MIB, format_bytes, in_unit, unit_for

Told = tuple[list[str], list[str]]  #: sentences of the explanation, and next steps


def size(size_bytes: int) -> str:
    """In GiB, or in what a smaller one is at least one of."""
    if size_bytes >= MIB:
        return format_bytes(size_bytes, unit_for(size_bytes))
    return format_bytes(size_bytes, "KiB" if size_bytes >= KIB else "B")


def of_figures(message: OomMessage, cause: Cause, where: Where) -> Told:
    """About a message with figures."""
    tell = {
        Cause.IMPOSSIBLE_REQUEST: _impossible,
        Cause.FRAGMENTATION: _fragmented,
        Cause.ELSEWHERE: _elsewhere,
        Cause.GENUINE_SHORTAGE: _short,
        Cause.CANNOT_TELL: _incomplete,
    }[cause]
    said, steps = tell(message)
    if cause is Cause.GENUINE_SHORTAGE and not message.refused_though_free:
        steps = [_by_place(where), *steps]
    return [*said, *_remarks(message)], steps


def one_of(count: int) -> str:
    """A sentence on texts with several messages."""
    return _(
        "The text holds {count} messages; this is about the first whose figures are complete, since what follows is "
        "often its consequence."
    ).format(count=count)


def _sizes(message: OomMessage) -> dict[str, str]:
    """The figures that the message has, as a sentence shows them."""
    sizes = {
        **{name.removesuffix("_bytes"): value for name, value in message.figures.items()},
        "gaps": message.unallocated_bytes,
        "allowed": message.allowed_bytes,
        "private": message.private_bytes,
    }
    return {name: size(value) for name, value in sizes.items() if value is not None}


def _impossible(message: OomMessage) -> Told:
    if message.total_bytes is None:
        said = _("A single request of {tried} or more is beyond any card: a shape or a length has been misread.")
    else:
        said = _(
            "A single request of {tried} is more than the whole card has, {total}. No setting of the allocator and no "
            "cut elsewhere makes room for it: a shape is wrong, or one tensor has to be made in pieces."
        )
    numbers = (message.tried_bytes or 0) // 2
    shapes = _(
        "print the shapes at the line of your own code that the traceback ends in: {tried} are {single:,} numbers in "
        "FP32, or {half:,} in 16 bit"
    )
    square = _(
        "as a square of 16-bit numbers it has a side of {side:,}: near the number of tokens, it is an attention mask "
        "or score matrix; use sdpa or flash attention, or shorter sequences"
    )
    sample = _("a length that was read wrongly (padding, packing, labels) makes such shapes: try one short sample")
    told = _sizes(message)
    return [said.format(**told)], [
        shapes.format(single=numbers // 2, half=numbers, **told), square.format(side=isqrt(numbers)), sample,
    ]  # fmt: skip


def _fragmented(message: OomMessage) -> Told:
    said = _(
        "PyTorch holds {reserved}, of which {allocated} are in tensors. The {gaps} between them are more than the "
        "{tried} asked for, but no gap is large enough: the memory is in pieces."
    )
    return [said.format(**_sizes(message))], [
        _("set PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9: PYTORCH_CUDA_ALLOC_CONF) in the "
          "environment before Python starts; segments then grow instead of splitting"),
        _("run the longest batch first, and pad to a few lengths, so that blocks fit each other"),
        _("call torch.cuda.empty_cache() between phases of different sizes, such as training and evaluation"),
    ]  # fmt: skip


def _elsewhere(message: OomMessage) -> Told:
    told = _sizes(message)
    if message.apple:
        said = _(
            "Of the {total} that Metal allows, PyTorch holds {reserved}; {elsewhere} are other allocations, more than "
            "the {tried} asked for."
        )
        return [said.format(**told)], [
            _("they are this process's own, outside PyTorch: MPSGraph's buffers, MLX, Core ML; shorter shapes, and "
              "fewer different ones, keep MPSGraph's small"),
            _("torch.mps.driver_allocated_memory() counts both, torch.mps.current_allocated_memory() the tensors: "
              "print them from step to step"),
        ]
    said = _(
        "Of {total}, PyTorch holds {reserved} and {free} are free. The other {elsewhere} are not its tensors: a CUDA "
        "context takes up to {context} of them, and what remains is no less than the {tried} asked for."
    )
    budget = _budget(message.usable_bytes or 0)
    first = _("nvidia-smi names the processes on the card; end the one that is not needed, most often the kernel of "
              "another notebook or a run that did not die")  # fmt: skip
    if 2 * (message.outside_bytes or 0) > (message.elsewhere_bytes or 0):
        first = _("most of it is this process's own, outside PyTorch: find the library that takes the card's memory "
                  "(JAX, TensorFlow, RAPIDS, an ONNX runtime, a CUDA extension), and limit it")  # fmt: skip
    return [said.format(context=size(CONTEXT_BYTES), **told)], [
        first,
        _("in a container, where it names none, ask on the host; or take another card with CUDA_VISIBLE_DEVICES"),
        _("or plan with what is left: {command}").format(command=f"course plan MODEL {budget}"),
    ]  # fmt: skip


def _short(message: OomMessage) -> Told:
    if message.refused_though_free:
        said = _(
            "Of {total}, PyTorch holds {reserved} and {free} are free, no less than the {tried} that were asked for. "
            "The driver refused them all the same: what is free is not one piece, or a limit beside the card was met."
        )
        return [said.format(**_sizes(message))], [
            _("end every process on the card and start afresh; a driver that keeps refusing wants a restart"),
            _("look for such a limit: a MIG or virtual card, a container's, on Windows the paging file's size"),
            _("ask for less at once: a smaller micro-batch, or a chunked loss"),
        ]
    if message.allowed_bytes is not None:
        said = _("PyTorch holds {reserved}, with {allocated} in tensors, and {tried} more were asked for.")
    elif message.free_bytes is None:
        said = _("Of {total}, PyTorch holds {reserved}, and {tried} more were asked for: the run itself is too large.")
    else:
        said = _(
            "Of {total}, PyTorch holds {reserved}, with {allocated} in tensors; {free} are free, and {tried} were "
            "asked for. Neither gaps nor others hold what is missing: the run itself is too large."
        )
    budget = _budget(message.usable_bytes or 0)
    return [said.format(**_sizes(message))], [
        _("see which account fills the card, and when: {command}").format(command=f"course ledger MODEL … {budget}"),
        _("let the planner choose the cheapest cuts that fit: {command}").format(command=f"course plan MODEL {budget}"),
    ]  # fmt: skip


def _budget(size_bytes: int) -> str:
    return f"--budget-gib {in_unit(size_bytes):.2f}"


def _by_place(where: Where) -> str:
    return {
        Where.STEP: _(
            "it died in the optimizer's step: Adam's state appears in the first one, and foreach takes a temporary as "
            "large as what is trained; try fused=True, then an 8-bit optimizer, then LoRA"
        ),
        Where.LOAD: _(
            "it died while loading: load in 16 bit, not FP32, quantise on the way, and let no second copy live "
            '(map_location="cpu")'
        ),
        Where.LOSS: _(
            "it died at the logits: they take tokens × vocabulary × up to 12 bytes; a smaller micro-batch, or a loss "
            "fused with the head"
        ),
        Where.ATTENTION: _(
            "it died in attention: a score matrix grows with the square of the length; use sdpa or flash attention"
        ),
        Where.BACKWARD: _(
            "it died in the backward pass, where activations are at their most: a smaller micro-batch with "
            "accumulation, then checkpointing"
        ),
        Where.UNKNOWN: _("the tensor that failed is the last straw, not the culprit: find the largest account first"),
    }[where]


def _incomplete(message: OomMessage) -> Told:
    told = _sizes(message)
    names = ("tried", "total", "free", "allocated", "reserved")
    stated = ", ".join(f"{name} {told[name]}" for name in names if name in told)
    missing = ", ".join(name for name in names if name not in told)
    said = [
        _("The message says {stated}, but not {missing}; without it gaps, others and the run itself cannot be told "
          "apart.").format(stated=stated, missing=missing)
    ]  # fmt: skip
    gaps, tried = message.unallocated_bytes, message.tried_bytes
    if gaps is not None and tried is not None and gaps < tried:
        said.append(_("It is not fragmentation: PyTorch holds only {gaps} without a tensor in it.").format(**told))
    return said, _how_to_learn_more()


def _how_to_learn_more() -> list[str]:
    return [
        _("print torch.cuda.mem_get_info() and torch.cuda.memory_summary() just before the line that fails, and give "
          "the whole message to course oom"),
        _("look at nvidia-smi meanwhile: does somebody else hold the card?"),
    ]  # fmt: skip


def _remarks(message: OomMessage) -> Iterator[str]:
    told, total = _sizes(message), message.total_bytes
    if message.allowed_bytes is not None:
        yield _(
            "This process may use only {allowed} of the card (set_per_process_memory_fraction, or a setting of the "
            "allocator); that limit was reached, whatever is free."
        ).format(**told)
    if message.reserved_bytes is not None and total is not None and message.reserved_bytes > total:
        yield _(
            "PyTorch holds more than the card has: the driver has moved memory to the host, as it does on Windows and "
            "in WSL, which makes steps many times slower."
        )
    if message.private_bytes:
        yield _(
            "{private} of the tensors are in private pools, such as CUDA graphs', which other tensors cannot use."
        ).format(**told)
    yield from _processes(message)


def _processes(message: OomMessage) -> Iterator[str]:
    known = [each for each in message.processes if each.used_bytes is not None]
    own, outside = message.own_bytes, message.outside_bytes
    if own and outside:
        yield _(
            "This process itself has {own} in use, {outside} more than PyTorch holds: its CUDA context and other "
            "libraries."
        ).format(own=size(own), outside=size(outside))
    listed = ", ".join(f"{each.pid}: {size(each.used_bytes or 0)}" for each in known if each.pid is not None)
    if listed and own is not None:
        yield _("Other processes on the card, by number: {listed}.").format(listed=listed)
    elif listed:
        yield _("Processes on the card, by number, one of which may be this one: {listed}.").format(listed=listed)


def of_sign(sign: Sign, tried_bytes: int | None) -> Told:
    """About a message without an allocator's figures."""
    said = [_(sign.what)]
    if tried_bytes:
        said.append(_("{tried} were asked for.").format(tried=size(tried_bytes)))
    if sign.place is Place.SHARED:
        return said, [
            _("give the container more: docker run --shm-size 8g, or --ipc=host"),
            _("or use fewer workers: DataLoader(num_workers=0) needs none of it"),
        ]
    if sign.place in (Place.HOST, Place.PERHAPS_HOST):
        if sign.place is Place.HOST:
            said.append(_("That is the host's memory, not the card's: a smaller micro-batch seldom helps."))
        return said, [
            _("be sure: dmesg | grep -i kill names the process that the kernel ended; free -h, or the job's limit, "
              "says how much there is"),
            _("load weights in 16 bit and without a second copy (dtype=torch.bfloat16, safetensors, device_map), and "
              "free what an earlier cell still holds"),
            _("fewer DataLoader workers; stream the data set; do not gather the predictions of an evaluation"),
        ]  # fmt: skip
    said.append(_("The text has no figures of an allocator, so why memory ran out cannot be told."))
    if sign.place is Place.PERHAPS:
        return said, [
            _("leave a gigabyte free (a smaller micro-batch): if the error stays, it is not memory"),
            _("run once on the CPU, or with CUDA_LAUNCH_BLOCKING=1: an index out of range then names its own line"),
            *_how_to_learn_more(),
        ]
    return said, _how_to_learn_more()


def of_nothing() -> Told:
    """About a text without a word of memory."""
    return [_("Nothing here says that memory ran out.")], [
        _("read the last line of the traceback: it names the error"),
        _("if memory is meant all the same, give the whole output: PyTorch's message begins with CUDA out of memory"),
    ]
