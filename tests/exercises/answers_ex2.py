# ruff: noqa: E501 - a row of the table stays a row
"""Right and wrong answers to exercise 2. Append rows: see :class:`harness.Answer`."""

from harness import Answer

BLOCKS = "checkpoint-blocks"
GRADIENTS, SEGMENTS, DROPOUT = "checkpoint-gradients", "checkpoint-segments", "checkpoint-dropout"
FROZEN, MODES = "checkpoint-frozen", "checkpoint-modes"
SAVING, FLOPS, BEST = "compare-saving", "compare-flops", "best-every-tests"


def whole(code: str) -> dict[str, str]:
    return {BLOCKS: "from functools import partial\nfrom torch.utils.checkpoint import checkpoint\n" + code}


RIGHT = (
    Answer("the reference", {}),
    Answer("a ModuleList that hands out segments", {
        **whole("""
import torch
class Segmented(torch.nn.ModuleList):
    every = 1
    def __iter__(self):
        blocks = list(super().__iter__())
        if not self.training:
            return iter(blocks)
        def run(segment, x):
            for block in segment:
                x = block(x)
            return x
        segments = [blocks[i:i + self.every] for i in range(0, len(blocks), self.every)]
        return iter([partial(checkpoint, partial(run, segment), use_reentrant=False) for segment in segments])

def checkpoint_blocks(model, every=1):
    if every < 1:
        raise ValueError("every")
    segmented = Segmented(list(model.blocks))
    segmented.every = every
    segmented.train(model.training)
    model.blocks = segmented
    return model
"""),
        "best-every": """
def best_every(n_blocks, boundary_bytes, inside_bytes):
    best, fewest = None, float("inf")
    for k in range(1, n_blocks + 1):
        segments = n_blocks // k + (n_blocks % k > 0)
        needed = segments * boundary_bytes + k * inside_bytes
        if needed < fewest:
            best, fewest = k, needed
    return best
""",
    }),
    Answer("nested functions with default arguments, no early stop, saved bytes by a probe", {
        **whole("""
import types
from torch.utils.checkpoint import set_checkpoint_early_stop

def checkpoint_blocks(model, every=1):
    if not every >= 1:
        raise ValueError(every)
    blocks = list(model.blocks)
    while blocks:
        segment, blocks = blocks[:every], blocks[every:]
        old = [block.forward for block in segment]
        def run(x, old=old):
            for forward in old:
                x = forward(x)
            return x
        def first(self, x, run=run, old=old):
            if not self.training:
                return old[0](x)
            with set_checkpoint_early_stop(False):
                return checkpoint(run, x, use_reentrant=False)
        segment[0].forward = types.MethodType(first, segment[0])
        for block, forward in zip(segment[1:], old[1:]):
            block.forward = lambda x, block=block, forward=forward: x if block.training else forward(x)
    return model
"""),
        "compare": """
import time
from torch.utils.flop_counter import FlopCounterMode
from course_lib.models import next_token_loss
from course_lib.probe import probe

def compare(make_model, batch, every=1):
    answer = []
    for change in (lambda model: model, lambda model: checkpoint_blocks(model, every)):
        model = change(make_model())
        with probe(model) as measured:
            loss = next_token_loss(model(batch[0]), batch[1])
        kept = sum(measured.trace.live[-1][1:])
        start = time.time()
        with FlopCounterMode(display=False) as counter:
            next_token_loss(model(batch[0]), batch[1]).backward()
        answer.append((kept, counter.get_total_flops(), time.time() - start))
    (kept, flops, seconds), (kept_c, flops_c, seconds_c) = answer
    return dict(activation_saving=(kept - kept_c) / kept, extra_flops=(flops_c - flops) / flops, time_ratio=seconds_c / seconds)
""",
    }),
    Answer("recomputation written by hand", {
        **whole("""
import torch

class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *weights):
        ctx.run, ctx.weights = run, weights
        ctx.save_for_backward(x)
        ctx.state = torch.get_rng_state()
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.run(x)
        torch.set_rng_state(now)
        torch.autograd.backward(y, grad)  # weights take their gradients here
        return None, x.grad, *(None for _ in ctx.weights)

def checkpoint_blocks(model, every=1):
    if every < 1:
        raise ValueError("every must be at least 1")
    blocks = list(model.blocks)
    for i in range(0, len(blocks), every):
        _wrap(blocks[i:i + every])
    return model

def _wrap(segment):
    old = [block.forward for block in segment]
    def run(x):
        for forward in old:
            x = forward(x)
        return x
    def make(position, block):
        def forward(x):
            if not block.training:
                return old[position](x)
            if position > 0:
                return x
            return Recompute.apply(run, x, *[w for b in segment for w in b.parameters()])
        return forward
    for position, block in enumerate(segment):
        block.forward = make(position, block)
"""),
    }),
    Answer("a deep model of one's own, whose best K is more than one", {
        "own-model": """
from course_lib.models import GPTConfig
my_config = GPTConfig(vocab=1000, layers=100, heads=4, width=256, block_size=256)
my_batch, my_length = 2, 256
my_boundary_bytes = 2 * 256 * 256 * 4
my_inside_bytes, my_every, reason = 7_897_088, 3, "B"
""",
    }),
)  # fmt: skip

_CALL = "return checkpoint(run_segment, forwards, x, *args, use_reentrant=False, **kwargs)"
_MODE = "if not block.training:"
_LOOP = "    for start in range(0, len(blocks), every):\n"
_RETURN = '            block.forward = partial(forward, block, position, forwards)\n    return model'

WRONG = (
    Answer("one checkpoint around the whole stack", {BLOCKS: ((_LOOP, "    every = len(blocks)\n" + _LOOP),)}, {SEGMENTS: "one-segment"}),
    Answer("every ignored", {BLOCKS: ((_LOOP, "    every = 1\n" + _LOOP),)}, {SEGMENTS: "every-ignored"}),
    Answer("the remainder is left plain", {BLOCKS: ((_LOOP, "    for start in range(0, len(blocks) // every * every, every):\n"),)},
           {SEGMENTS: "remainder-plain"}),
    Answer("the remainder is lost", {BLOCKS: (
        (_LOOP, "    for block in blocks[len(blocks) // every * every:]:\n        block.forward = lambda x: x\n"
                "    for start in range(0, len(blocks) // every * every, every):\n"),)}, {SEGMENTS: "remainder-lost"}),
    Answer("the last segment is left plain", {BLOCKS: (
        ("        segment = blocks[start : start + every]\n", "        segment = blocks[start : start + every]\n        if start + every >= len(blocks):\n            break\n"),)},
           {GRADIENTS: "last-segment-plain", SEGMENTS: "last-segment-plain"}),
    Answer("nothing is checkpointed", {BLOCKS: ((_CALL, "return run_segment(forwards, x, *args, **kwargs)"),)},
           {GRADIENTS: "nothing-checkpointed", SEGMENTS: "nothing-checkpointed", MODES: "nothing-checkpointed"}),
    Answer("late binding of the loop variable", whole("""
def checkpoint_blocks(model, every=1):
    if every < 1:
        raise ValueError(every)
    for block in model.blocks:
        old = block.forward
        def forward(x):
            return checkpoint(old, x, use_reentrant=False) if block.training else old(x)
        block.forward = forward
    return model
"""), {GRADIENTS: "late-binding", SEGMENTS: "late-binding", DROPOUT: "late-binding", FROZEN: "late-binding", MODES: "late-binding"}),
    Answer("a forward that calls itself", whole("""
def checkpoint_blocks(model, every=1):
    if every < 1:
        raise ValueError(every)
    for block in model.blocks:
        block.forward = lambda x, block=block: checkpoint(block.forward, x, use_reentrant=False)
    return model
"""), {GRADIENTS: "calls-itself", SEGMENTS: "calls-itself", DROPOUT: "calls-itself", FROZEN: "calls-itself", MODES: "calls-itself",
       SAVING: None, FLOPS: None}),
    Answer("the input is detached", {BLOCKS: (("return checkpoint(run_segment, forwards, x, *args", "return checkpoint(run_segment, forwards, x.detach(), *args"),)},
           {GRADIENTS: "detached", SEGMENTS: "detached", DROPOUT: "detached", FROZEN: "detached"}),
    Answer("reentrant, with a frozen input", {BLOCKS: (("use_reentrant=False, **kwargs", "use_reentrant=True, **kwargs"),)}, {FROZEN: "reentrant"}),
    Answer("the random state is not preserved", {BLOCKS: (("use_reentrant=False, **kwargs", "use_reentrant=False, preserve_rng_state=False, **kwargs"),)},
           {DROPOUT: "random-state-lost"}),
    Answer("checkpointing in eval, too", {BLOCKS: ((_MODE, "if False:"),)}, {MODES: "checkpointed-in-eval"}),
    Answer("the mode is read when the function runs", {BLOCKS: (
        (_MODE, "if not training:"), ("    blocks = list(model.blocks)\n", "    blocks = list(model.blocks)\n    training = model.training\n"))},
           {MODES: "mode-read-once"}),
    Answer("renamed state-dict keys", whole("""
import torch
class Checkpointed(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block
    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False) if self.training else self.block(x)
class Segment(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.inner = torch.nn.Sequential(*blocks)
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) if self.training else self.inner(x)
def checkpoint_blocks(model, every=1):
    if every < 1:
        raise ValueError(every)
    blocks = list(model.blocks)
    model.blocks = torch.nn.ModuleList(Segment(blocks[i:i + every]) for i in range(0, len(blocks), every))
    return model
"""), {MODES: "keys-renamed"}),
    Answer("a copy of the model", {BLOCKS: (("    blocks = list(model.blocks)\n", "    import copy\n    model = copy.deepcopy(model)\n    blocks = list(model.blocks)\n"),)},
           {GRADIENTS: "another-model"}),
    Answer("nothing is returned", {BLOCKS: ((_RETURN, _RETURN.replace("    return model", "")),)},
           {GRADIENTS: "nothing-returned", SAVING: None, FLOPS: None}),
    Answer("every below one is taken", {BLOCKS: (("if every < 1", "if False"),)}, {SEGMENTS: "every-not-checked"}),
    Answer("reentrant, and the random state lost", {BLOCKS: (("use_reentrant=False, **kwargs", "use_reentrant=True, preserve_rng_state=False, **kwargs"),)},
           {FROZEN: None, DROPOUT: None}),
    # what it saves and costs
    Answer("what remains, not what is saved", {"compare": (("1 - saved_bytes / plain_bytes", "saved_bytes / plain_bytes"),)}, {SAVING: "ratio-not-saving"}),
    Answer("divided the wrong way round", {"compare": (("1 - saved_bytes / plain_bytes", "1 - plain_bytes / saved_bytes"),)}, {SAVING: "without-over-with"}),
    Answer("weights counted", {"compare": (("if storage.data_ptr() not in parameters", "if True"),)}, {SAVING: "weights-counted"}),
    Answer("each tensor counted", {"compare": (("saved[storage.data_ptr()] = storage", "saved[len(saved)] = storage"),)}, {SAVING: "counted-twice"}),
    Answer("the saving of the peak", {"compare": (
        ("saved_bytes = sum(storage.nbytes() for storage in saved.values())",
         "from course_lib.probe import probe\n        with probe(model) as measured:\n            next_token_loss(model(tokens), targets).backward()\n        saved_bytes = measured.peak_bytes"),)},
           {SAVING: "saving-of-the-peak"}),
    Answer("one model for both steps", {"compare": (
        ("    plain_bytes, plain_flops, plain_seconds = step_of(make_model())\n",
         "    model = make_model()\n    checkpointed = checkpoint_blocks(model, every)\n    plain_bytes, plain_flops, plain_seconds = step_of(model)\n"),
        ("step_of(checkpoint_blocks(make_model(), every))", "step_of(checkpointed)"))},
           {SAVING: "plain-is-checkpointed-too", FLOPS: "plain-is-checkpointed-too"}),
    Answer("FLOPs with ÷ without", {"compare": (("flops / plain_flops - 1", "flops / plain_flops"),)}, {FLOPS: "ratio-not-extra"}),
    Answer("FLOPs of the forward pass", {"compare": (("            loss.backward()\n        saved_bytes", "        loss.backward()\n        saved_bytes"),)}, {FLOPS: "forward-counted-alone"}),
    Answer("a share of the new step", {"compare": (("flops / plain_flops - 1", "1 - plain_flops / flops"),)}, {FLOPS: "share-of-the-new-step"}),
    # segments
    Answer("ties to the larger K", {"best-every": (("range(1, n_blocks + 1)", "range(n_blocks, 0, -1)"),)}, {BEST: "ties-to-the-larger"}),
    Answer("the remainder rounded down", {"best-every": (("ceil(n_blocks / every)", "n_blocks // every"),)}, {BEST: "remainder-forgotten"}),
    Answer("the square root", {"best-every": (("    return min(", "    return max(1, round(n_blocks**0.5))\n    return min("),)}, {BEST: "square-root"}),
    Answer("range ends early", {"best-every": (("range(1, n_blocks + 1)", "range(1, max(2, n_blocks))"),)}, {BEST: "range-ends-early"}),
    Answer("swapped arguments", {"best-every": (("ceil(n_blocks / every) * boundary_bytes + every * inside_bytes", "ceil(n_blocks / every) * inside_bytes + every * boundary_bytes"),)},
           {BEST: "boundary-and-inside-swapped"}),
    # one's own model
    Answer("the boundary of one sequence", {"own-model": (("12_582_912", "1_572_864"),)}, {"own-bytes": "one-sequence"}),
    Answer("numbers instead of bytes", {"own-model": (("12_582_912", "3_145_728"),)}, {"own-bytes": "numbers-for-bytes"}),
    Answer("inside with its boundary", {"own-model": (("188_941_312", "201_524_224"),)}, {"own-bytes": "inside-with-boundary"}),
    Answer("always the square root", {"own-model": (('1, "A"', '5, "C"'),)}, {"own-every": None}),
    Answer("the reason for another K", {"own-model": (('1, "A"', '1, "C"'),)}, {"own-every": "always-the-square-root"}),
)  # fmt: skip
