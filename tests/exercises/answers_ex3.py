"""Right and wrong answers to exercise 3. Append rows: see :class:`harness.Answer`."""

from harness import Answer

TRAIN, CURVE, OWN = "train", "same-curve", "own-configuration"
WINDOWS, GRADIENTS, TOKENS, EMPTY = "train-windows", "train-gradients", "train-tokens", "train-empty"
CLIP, SCALER, RELEASED, CURVES = "train-clip", "train-scaler", "train-released", "same-curve-tests"

_HEAD = """
import torch
from course_lib.models import next_token_loss
def train(model, micro_batches, *, accum_steps, optimizer, max_grad_norm=None, scaler=None):
"""

RIGHT = (
    Answer("the reference", {}),
    Answer(
        "summed gradients, divided by the tokens after unscaling",
        {
            TRAIN: _HEAD
            + """
    losses, total, count, seen = [], 0.0, 0, 0
    optimizer.zero_grad(set_to_none=True)
    for i, (tokens, targets) in enumerate(micro_batches, 1):
        n = (targets != -100).sum().item()
        if n:
            loss = next_token_loss(model(tokens), targets, reduction="sum")
            (loss if scaler is None else scaler.scale(loss)).backward()
            total, count = total + float(loss), count + n
        if i % accum_steps and i < len(micro_batches):
            continue
        losses.append(total / count if count else float("nan"))
        if count:
            if scaler is not None:
                scaler.unscale_(optimizer)
            for p in model.parameters():
                if p.grad is not None:
                    p.grad /= count
            if max_grad_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad(set_to_none=True)
        total, count = 0.0, 0
    return losses
""",
            CURVE: """
import math
def same_curve(a, b):
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if not math.isclose(x, y, rel_tol=5e-5, abs_tol=0.0):
            return False
    return True
""",
        },
    ),
    Answer(
        "gradients divided while scaled, a scaler that does nothing, entries as 0-dim arithmetic",
        {
            TRAIN: _HEAD
            + """
    scaler = scaler if scaler is not None else torch.amp.GradScaler("cpu", enabled=False)
    losses = []
    for start in range(0, len(micro_batches), accum_steps):
        optimizer.zero_grad()
        total, count = torch.zeros(()), 0
        for tokens, targets in micro_batches[start:start + accum_steps]:
            logits = model(tokens)
            loss = next_token_loss(logits, targets, "sum")
            scaler.scale(loss).backward()
            total += loss.detach()
            count += int(targets.ne(-100).sum())
        losses.append((total / count).item() if count else float("nan"))
        if not count:
            continue
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.div_(count)
        if max_grad_norm is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        scaler.step(optimizer)
        scaler.update()
    return losses
""",
            CURVE: """
import numpy as np
def same_curve(a, b):
    return len(a) == len(b) and np.allclose(a, b, rtol=1e-4, atol=0)
""",
        },
    ),
    Answer(
        "means weighted by their tokens, clipping by hand",
        {
            TRAIN: _HEAD
            + """
    windows = [micro_batches[i:i + accum_steps] for i in range(0, len(micro_batches), accum_steps)]
    losses = []
    for window in windows:
        counts = [(targets != -100).sum().item() for _, targets in window]
        if sum(counts) == 0:
            losses.append(float("nan")); continue
        model.zero_grad()
        value = 0.0
        for (tokens, targets), n in zip(window, counts):
            if n == 0:
                continue
            loss = next_token_loss(model(tokens), targets) * (n / sum(counts))
            value += loss.item()
            if scaler is not None:
                loss = scaler.scale(loss)
            loss.backward()
            del loss
        if scaler is not None:
            scaler.unscale_(optimizer)
        if max_grad_norm is not None:
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            norm = torch.sqrt(sum((g ** 2).sum() for g in grads))
            if norm > max_grad_norm:
                for g in grads:
                    g.mul_(max_grad_norm / norm)
        if scaler is not None:
            scaler.step(optimizer); scaler.update()
        else:
            optimizer.step()
        losses.append(value)
    return losses
""",
            CURVE: """
import torch
def same_curve(a, b):
    if len(a) != len(b):
        return False
    x, y = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    return torch.all((x - y).abs() / torch.maximum(x.abs(), y.abs()) < 2e-5)
""",
        },
    ),
    Answer(
        "torch.autograd.grad and sums of one's own",
        {
            TRAIN: _HEAD
            + """
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses = []
    pending = list(micro_batches)
    while pending:
        window, pending = pending[:accum_steps], pending[accum_steps:]
        count = int(sum((t != -100).sum() for _, t in window))
        if not count:
            losses += [float("nan")]
            continue
        sums, value = None, 0.0
        for tokens, targets in window:
            loss = next_token_loss(model(tokens), targets, "sum") / count
            value += loss.item()
            grads = torch.autograd.grad(scaler.scale(loss) if scaler else loss, parameters)
            sums = grads if sums is None else [a + b for a, b in zip(sums, grads)]
        for p, g in zip(parameters, sums):
            p.grad = g.clone()
        if scaler:
            scaler.unscale_(optimizer)
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm, foreach=False)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(value)
    return losses
""",
        },
    ),
    Answer(
        "another configuration of one's own, whose peak is the optimizer's",
        {
            OWN: """
from course_lib.models import GPTConfig
my_config = GPTConfig(vocab=512, layers=4, heads=8, width=512, block_size=128)
my_batch, my_length, my_steps, reason = 1, 64, 8, "A"
big_peak_gib, accum_peak_gib, kept_gib = 0.241, 0.241, 0.0482
"""
        },
    ),
)

_LOSS = '            loss = next_token_loss(model(tokens), targets, reduction="sum") / count\n'
_ITEM = "            window_loss += loss.item()\n"
_BACK = "            (scaler.scale(loss) if scaler else loss).backward()\n"
_UNSCALE = "        if scaler:\n            scaler.unscale_(optimizer)\n"
_CLIP = (
    "        if max_grad_norm is not None:\n"
    "            torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)\n"
)
_STEP = "            scaler.step(optimizer)\n            scaler.update()\n"
_ZERO = "        optimizer.zero_grad()\n        losses"
_EMPTY = '        if count == 0:\n            losses.append(float("nan"))\n            continue\n'
_WINDOW = "    while window := list(islice(rest, accum_steps)):\n"


def _loss(divided: str) -> tuple[tuple[str, str], ...]:
    """Another loss goes backward; the entry stays right."""
    return (
        (
            _BACK,
            _BACK.replace(
                "scaler.scale(loss) if scaler else loss", f"scaler.scale({divided}) if scaler else {divided}"
            ),
        ),
    )


_MEAN = "(loss * count / max(1, (targets != -100).sum()))"

#: A loop as most people write it, right for micro-batches of equal size.
_COMMON = (
    _HEAD
    + """
    losses, running = [], 0.0
    optimizer.zero_grad()
    for i, (tokens, targets) in enumerate(micro_batches):
        loss = next_token_loss(model(tokens), targets) / accum_steps
        running += loss.item()
        (loss if scaler is None else scaler.scale(loss)).backward()
        if (i + 1) % accum_steps == 0:
            if scaler is not None:
                scaler.unscale_(optimizer)
            if max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
            losses.append(running)
            running = 0.0
    return losses
"""
)

WRONG = (
    # windows and entries
    Answer(
        "step on i % n == 0",
        {
            TRAIN: (
                (
                    _WINDOW,
                    "    for window in [micro_batches[:1]] + [micro_batches[i:i + accum_steps] for i in "
                    "range(1, len(micro_batches), accum_steps)]:\n",
                ),
            )
        },
        {WINDOWS: "step-on-i-mod-n"},
    ),
    Answer(
        "step on i % n == 0, the rest lost",
        {
            TRAIN: (
                (
                    _WINDOW,
                    "    for window in [micro_batches[:1]] + [micro_batches[i:i + accum_steps] for i in "
                    "range(1, len(micro_batches) + 1 - accum_steps, accum_steps)]:\n",
                ),
            )
        },
        {WINDOWS: "step-on-i-mod-n"},
    ),
    Answer(
        "last window dropped",
        {TRAIN: ((_WINDOW, _WINDOW + "        if len(window) < accum_steps:\n            break\n"),)},
        {WINDOWS: "last-window-dropped"},
    ),
    Answer(
        "an update after every micro-batch",
        {TRAIN: (("islice(rest, accum_steps)", "islice(rest, 1)"),)},
        {WINDOWS: "step-every-micro-batch", GRADIENTS: "never-full"},
    ),
    Answer(
        "the entry is the last micro-batch's",
        {TRAIN: ((_ITEM, "            window_loss = loss.item() * count / max(1, int((targets != -100).sum()))\n"),)},
        {WINDOWS: "entry-of-last-micro-batch"},
    ),
    Answer(
        "one entry for each micro-batch",
        {
            TRAIN: (
                (_ITEM, "            losses.append(loss.item() * count / max(1, int((targets != -100).sum())))\n"),
                ("        losses.append(window_loss)\n", ""),
            )
        },
        {WINDOWS: "entry-per-micro-batch"},
    ),
    Answer(
        "the entry is a sum",
        {TRAIN: (("losses.append(window_loss)", "losses.append(window_loss * count)"),)},
        {WINDOWS: "entry-is-a-sum"},
    ),
    Answer(
        "the entry is divided twice",
        {TRAIN: (("losses.append(window_loss)", "losses.append(window_loss / len(window))"),)},
        {WINDOWS: "entry-divided-twice"},
    ),
    Answer(
        "entries over accum_steps",
        {TRAIN: (("losses.append(window_loss)", "losses.append(window_loss * len(window) / accum_steps)"),)},
        {WINDOWS: "partial-window-over-n", TOKENS: "partial-window-over-n"},
    ),
    Answer(
        "the loss after the update",
        {
            TRAIN: (
                (
                    "losses.append(window_loss)",
                    'losses.append(sum(next_token_loss(model(a), b, "sum").item() for a, b in window) / count)',
                ),
            )
        },
        {WINDOWS: "entry-after-the-update"},
    ),
    # gradients
    Answer("no 1/N", {TRAIN: _loss(_MEAN)}, {GRADIENTS: "no-division"}),
    Answer("1/batch instead", {TRAIN: _loss(f"({_MEAN} / len(tokens))")}, {GRADIENTS: "divided-by-batch"}),
    Answer(
        "a sum, divided by the batch",
        {TRAIN: _loss("(loss * count / tokens.shape[0])")},
        {GRADIENTS: "divided-by-batch"},
    ),
    Answer("a sum, not divided", {TRAIN: _loss("(loss * count)")}, {GRADIENTS: "sum-not-divided"}),
    Answer("divided by tokens and by N", {TRAIN: _loss("(loss / accum_steps)")}, {GRADIENTS: "divided-twice"}),
    Answer(
        "zero_grad inside the window",
        {TRAIN: ((_BACK, "            optimizer.zero_grad()\n" + _BACK),)},
        {GRADIENTS: "zero-grad-inside"},
    ),
    Answer("no zero_grad", {TRAIN: ((_ZERO, "        losses"),)}, {GRADIENTS: "gradients-carried-over"}),
    Answer(
        "zero_grad after the first backward",
        {TRAIN: ((_BACK, _BACK + "            if tokens is window[0][0]:\n                optimizer.zero_grad()\n"),)},
        {GRADIENTS: "first-micro-batch-missing"},
    ),
    # unequal micro-batches
    Answer(
        "mean of means",
        {
            TRAIN: (
                *_loss(f"({_MEAN} / len(window))"),
                (
                    _ITEM,
                    "            window_loss += "
                    "loss.item() * count / max(1, int((targets != -100).sum())) / len(window)\n",
                ),
            )
        },
        {TOKENS: "mean-of-means"},
    ),
    Answer("mean of means, the entries right", {TRAIN: _loss(f"({_MEAN} / len(window))")}, {TOKENS: "mean-of-means"}),
    Answer(
        "entries are means of means",
        {
            TRAIN: (
                (
                    _ITEM,
                    "            window_loss += "
                    "loss.item() * count / max(1, int((targets != -100).sum())) / len(window)\n",
                ),
            )
        },
        {TOKENS: "entry-mean-of-means"},
    ),
    Answer(
        "masked tokens counted",
        {TRAIN: (("int((targets != -100).sum())", "targets.numel()"), ("if count == 0", "if False"))},
        {TOKENS: "masked-tokens-counted", EMPTY: "empty-window-steps"},
    ),
    Answer(
        "the last window as if it were full",
        {TRAIN: _loss("(loss * len(window) / accum_steps)")},
        {TOKENS: "partial-window-over-n"},
    ),
    Answer(
        "nan × 0",
        {
            TRAIN: (
                (
                    _LOSS,
                    "            loss = next_token_loss(model(tokens), targets) * (targets != -100).sum() / count\n",
                ),
            )
        },
        {TOKENS: "mean-of-nothing"},
    ),
    Answer(
        "the common loop: mean of means, the rest lost",
        {TRAIN: _COMMON},
        {WINDOWS: "last-window-dropped", TOKENS: "mean-of-means", EMPTY: "empty-window-steps"},
    ),
    Answer(
        "the common loop without 1/N",
        {TRAIN: _COMMON.replace(" / accum_steps\n", "\n")},
        {WINDOWS: "last-window-dropped", GRADIENTS: "no-division", TOKENS: None, EMPTY: "empty-window-steps"},
    ),
    # a window without targets
    Answer("a loss of 0 / 0", {TRAIN: ((_EMPTY, ""),)}, {EMPTY: "empty-window-steps"}),
    Answer(
        "gradients of 0 / 0",
        {
            TRAIN: (
                *_loss("(loss * max(count, 1))"),
                (_EMPTY, ""),
                ("/ count\n", "/ max(count, 1)\n"),
                (_CLIP, "        for p in model.parameters():\n            p.grad /= count\n" + _CLIP),
                ("losses.append(window_loss)", 'losses.append(window_loss if count else float("nan"))'),
            )
        },
        {EMPTY: "empty-window-nan"},
    ),
    Answer(
        "a zero gradient steps",
        {
            TRAIN: (
                (_EMPTY, ""),
                ("/ count\n", "/ max(count, 1)\n"),
                ("losses.append(window_loss)", 'losses.append(window_loss if count else float("nan"))'),
            )
        },
        {EMPTY: "empty-window-steps"},
    ),
    Answer(
        "no entry for it",
        {TRAIN: (('            losses.append(float("nan"))\n', ""),)},
        {EMPTY: "empty-window-left-out"},
    ),
    Answer("0 for it", {TRAIN: (('float("nan")', "0.0"),)}, {EMPTY: "empty-window-zero"}),
    Answer("ZeroDivisionError", {TRAIN: ((_EMPTY, "        1 / count\n"),)}, {EMPTY: "empty-window-raises"}),
    # clipping
    Answer(
        "clip at every micro-step",
        {
            TRAIN: (
                (_CLIP, ""),
                (_UNSCALE, ""),
                (
                    _BACK,
                    _BACK
                    + _CLIP.replace("        ", "            ", 1).replace(
                        "\n            torch", "\n                torch"
                    ),
                ),
            )
        },
        {CLIP: "clip-every-micro-batch"},
    ),
    Answer("never clipped", {TRAIN: ((_CLIP, ""),)}, {CLIP: "clip-left-out"}),
    Answer("clipped by value", {TRAIN: (("clip_grad_norm_", "clip_grad_value_"),)}, {CLIP: "clip-by-value"}),
    Answer(
        "each tensor clipped",
        {
            TRAIN: (
                (
                    _CLIP,
                    _CLIP.replace(
                        "            torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)",
                        "            for p in model.parameters():\n"
                        "                torch.nn.utils.clip_grad_norm_([p], max_grad_norm)",
                    ),
                ),
            )
        },
        {CLIP: "clip-each-tensor"},
    ),
    Answer(
        "always stretched to the limit",
        {
            TRAIN: (
                (
                    _CLIP,
                    """        if max_grad_norm is not None:
            norm = torch.sqrt(sum((p.grad ** 2).sum() for p in model.parameters()))
            for p in model.parameters():
                p.grad *= max_grad_norm / norm
""",
                ),
            )
        },
        {CLIP: "clip-stretches"},
    ),
    Answer(
        "clipped, then divided",
        {
            TRAIN: (
                *_loss("(loss * count)"),
                (_CLIP, _CLIP + "        for p in model.parameters():\n            p.grad /= count\n"),
            )
        },
        {CLIP: "clip-before-division"},
    ),
    Answer("clipped after the update", {TRAIN: ((_CLIP, ""), (_ZERO, _CLIP + _ZERO))}, {CLIP: "clip-left-out"}),
    # the scaler
    Answer(
        "unscaled twice",
        {TRAIN: ((_UNSCALE, _UNSCALE + "            scaler.unscale_(optimizer)\n"),)},
        {SCALER: "unscaled-twice"},
    ),
    Answer(
        "unscaled at every micro-batch",
        {
            TRAIN: (
                (_UNSCALE, ""),
                (_BACK, _BACK + "            if scaler:\n                scaler.unscale_(optimizer)\n"),
            )
        },
        {SCALER: "unscaled-twice"},
    ),
    Answer(
        "unscaled by hand as well",
        {
            TRAIN: (
                (
                    _UNSCALE,
                    _UNSCALE
                    + "            for p in model.parameters():\n                p.grad /= scaler.get_scale()\n",
                ),
            )
        },
        {SCALER: "unscaled-twice"},
    ),
    Answer("clipped before unscaling", {TRAIN: ((_UNSCALE, ""),)}, {SCALER: "clip-before-unscale"}),
    Answer(
        "scaler ignored",
        {TRAIN: (("    losses, rest", "    scaler = None\n    losses, rest"),)},
        {SCALER: "scaler-ignored"},
    ),
    Answer(
        "optimizer.step() past the scaler",
        {TRAIN: (("scaler.step(optimizer)", "optimizer.step()"),)},
        {SCALER: "past-the-scaler"},
    ),
    Answer(
        "optimizer.step(), never unscaled",
        {TRAIN: ((_UNSCALE, ""), ("scaler.step(optimizer)", "optimizer.step()"))},
        {SCALER: "past-the-scaler"},
    ),
    Answer("no scaler.update()", {TRAIN: (("            scaler.update()\n", ""),)}, {SCALER: "scaler-update-left-out"}),
    Answer(
        "the entry carries the scale",
        {TRAIN: ((_ITEM, "            window_loss += (scaler.scale(loss) if scaler else loss).item()\n"),)},
        {SCALER: "entry-scaled"},
    ),
    # what is kept
    Answer(
        "a sum of losses with their graphs",
        {
            TRAIN: (
                (_ITEM, "            window_loss = window_loss + loss\n"),
                ("append(window_loss)", "append(window_loss.item())"),
            )
        },
        {RELEASED: "graph-kept"},
    ),
    Answer(
        "a list of losses with their graphs",
        {
            TRAIN: (
                ("    losses, rest", "    kept = []\n    losses, rest"),
                (_ITEM, _ITEM + "            kept.append(loss)\n"),
            )
        },
        {RELEASED: "graph-kept"},
    ),
    Answer(
        "losses returned as tensors with their graphs",
        {TRAIN: ((_ITEM, "            window_loss = window_loss + loss\n"),)},
        {RELEASED: "graph-kept"},
    ),
    Answer(
        "entries are tensors",
        {TRAIN: ((_ITEM, "            window_loss += loss.detach()\n"),)},
        {RELEASED: "entries-are-tensors"},
    ),
    Answer(
        "one backward for the window",
        {
            TRAIN: (
                (_ITEM, "            window_loss = window_loss + loss\n"),
                (_BACK, ""),
                (_UNSCALE, _BACK[4:].replace("loss", "window_loss") + _UNSCALE),
                ("append(window_loss)", "append(window_loss.item())"),
            )
        },
        {RELEASED: "one-backward-for-the-window"},
    ),
    Answer(
        "micro-batches joined",
        {
            TRAIN: (
                (
                    "        for tokens, targets in window:\n",
                    "        for tokens, targets in [tuple(torch.cat(each) for each in zip(*window))]:\n",
                ),
            )
        },
        {RELEASED: "micro-batches-joined"},
    ),
    # the same curve
    Answer("an absolute difference", {CURVE: ((" * max(abs(x), abs(y))", ""),)}, {CURVES: "absolute-difference"}),
    Answer(
        "allclose as it comes but for rtol",
        {
            CURVE: "import numpy as np\ndef same_curve(a, b):\n"
            "    return len(a) == len(b) and np.allclose(a, b, rtol=1e-4)\n"
        },
        {CURVES: "relative-and-absolute"},
    ),
    Answer("equal to the last bit", {CURVE: "def same_curve(a, b):\n    return a == b\n"}, {CURVES: "too-strict"}),
    Answer("a tolerance of a per cent", {CURVE: (("1e-4", "1e-2"),)}, {CURVES: "too-loose"}),
    Answer(
        "zip without strict",
        {CURVE: (("len(a) == len(b) and ", ""), ("strict=True", "strict=False"))},
        {CURVES: "lengths-ignored"},
    ),
    Answer("unequal lengths raise", {CURVE: (("len(a) == len(b) and ", ""),)}, {CURVES: "lengths-raise"}),
    Answer(
        "nan passes",
        {CURVE: (("all(abs(x - y) <= 1e-4 * max(abs(x), abs(y))", "not any(abs(x - y) > 1e-4 * max(abs(x), abs(y))"),)},
        {CURVES: "nan-passes"},
    ),
    Answer(
        "two nans are the same",
        {
            CURVE: "import numpy as np\ndef same_curve(a, b):\n"
            "    return len(a) == len(b) and np.allclose(a, b, rtol=1e-4, atol=0, equal_nan=True)\n"
        },
        {CURVES: "two-nans-are-the-same"},
    ),
    Answer(
        "only the last entry",
        {CURVE: (("zip(a, b, strict=True)", "zip(a[-1:], b[-1:], strict=True)"),)},
        {CURVES: "only-the-end"},
    ),
    Answer(
        "averages",
        {CURVE: (("zip(a, b, strict=True)", "[(sum(a) / len(a), sum(b) / len(b))]"),)},
        {CURVES: "averages-compared"},
    ),
    Answer("no abs", {CURVE: (("abs(x - y)", "x - y"),)}, {CURVES: "no-abs"}),
    # one's own configuration
    Answer("GB for GiB", {OWN: (("4.83, 0.919, 0.0871", "5.184, 0.987, 0.0935"),)}, {"own-peaks": "gb-for-gib"}),
    Answer(
        "the big peak, divided by 8",
        {OWN: (("4.83, 0.919", "4.83, 0.604"), ('"B"', '"C"'))},
        {"own-peaks": "peak-divided-by-n", "own-reason": "peak-divided-by-n"},
    ),
    Answer(
        "a gradient for each micro-batch",
        {OWN: (("0.0871", "0.697"), ('"B"', '"D"'))},
        {"own-peaks": "gradients-times-n", "own-reason": "gradients-times-n"},
    ),
    Answer("16-bit gradients", {OWN: (("0.0871", "0.0435"),)}, {"own-peaks": "gradients-in-16-bit"}),
    Answer("gradients are gone between micro-batches", {OWN: (("0.0871", "0"),)}, {"own-peaks": "gradients-freed"}),
    Answer("the reason for another configuration", {OWN: (('"B"', '"A"'),)}, {"own-reason": "wrong-moment"}),
    Answer(
        "the example's configuration",
        {
            OWN: (
                (
                    "vocab=8192, layers=6, heads=8, width=512, block_size=512",
                    "vocab=4096, layers=4, heads=8, width=512, block_size=256",
                ),
                ("4, 512, 8\n", "4, 256, 8\n"),
            )
        },
        {"own-peaks": None, "own-reason": None},
    ),
)
