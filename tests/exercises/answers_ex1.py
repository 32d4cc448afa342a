# ruff: noqa: E501 - a row of the table stays a row
"""Right and wrong answers to exercise 1. Append rows: see :class:`harness.Answer`."""

from harness import Answer

PEAK, FP32, RECIPES, RELEASED = "measure-peak", "measure-peak-fp32", "measure-peak-recipes", "measure-peak-released"
STORED, AUTOCAST = "static-bytes-stored", "static-bytes-autocast"

RIGHT = (
    Answer("the reference", {}),
    Answer("with the course's own step and optimizer", {
        "static-bytes": """
LAYOUT = {"fp32": (4, 4, 8), "amp-bf16": (4, 4, 8), "bf16": (2, 2, 4)}
def static_bytes(n_params, recipe):
    try:
        weights, gradients, optimizer = LAYOUT[recipe]
    except KeyError:
        raise ValueError(recipe) from None
    return dict(optimizer=optimizer * n_params, weights=weights * n_params, gradients=gradients * n_params)
""",
        PEAK: """
from course_lib.models import next_token_loss
from course_lib.probe import probe
from course_lib.recipe import Recipe
from course_lib.training import autocast_of, make_optimizer, train_step
def measure_peak(make_model, make_batch, recipe, device):
    chosen = Recipe(precision=recipe)
    model, batch = make_model(), make_batch()
    if recipe == "bf16":
        model = model.bfloat16()
    optimizer = make_optimizer(model, chosen)
    def loss_of(model, batch):
        return next_token_loss(model(batch[0]), batch[1])
    for _ in range(2):
        with probe(model, optimizer) as measured:
            train_step(model, optimizer, [batch], loss_of, autocast_of(chosen, device))
    return measured.peak_bytes
""",
        "verdict": """
def verdict(static, peaks):
    answer = {"static_halves": {}, "peak_ratio": {}}
    half = sum(static["fp32"].values()) / 2
    for recipe in static:
        if recipe != "fp32":
            answer["static_halves"][recipe] = sum(static[recipe].values()) <= half
            answer["peak_ratio"][recipe] = peaks[recipe] / peaks["fp32"]
    return answer
""",
    }),
    Answer("two steps in one probe, logits held, statistics by name", {
        PEAK: """
import contextlib, gc, torch
from course_lib.models import next_token_loss
from course_lib.probe import probe
def measure_peak(make_model, make_batch, recipe, device):
    gc.collect()
    model = make_model()
    tokens, targets = make_batch()
    kind = "cuda" if "cuda" in str(device) else str(device)
    if recipe == "bf16":
        model.to(dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    def step():
        optimizer.zero_grad(set_to_none=True)
        amp = recipe == "amp-bf16"
        with torch.autocast(kind, torch.bfloat16) if amp else contextlib.nullcontext():
            logits = model(tokens)
            loss = next_token_loss(logits, targets)
        loss.backward()
        optimizer.step()
    if kind == "cuda":
        step()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.memory_stats()["allocated_bytes.all.peak"]
    with probe(model, optimizer) as measured:
        step()
        step()
    return measured.trace.peak_bytes
""",
    }),
    Answer("loss outside the region, logits let go", {
        PEAK: (
            ("            loss = next_token_loss(model(tokens), targets)",
             "            logits = model(tokens)\n        loss = next_token_loss(logits, targets)\n        del logits"),
        ),
    }),
    Answer("logits held by a name, and so counted", {
        PEAK: (("            loss = next_token_loss(model(tokens), targets)",
                "            logits = model(tokens)\n            loss = next_token_loss(logits, targets)"),),
        "own-configuration": (("1.40, 1.05", "1.53, 1.11"),),
    }),
    Answer("another configuration of one's own, whose peak is the optimizer's", {
        "own-configuration": """
from course_lib.models import GPTConfig
my_config = GPTConfig(vocab=16000, layers=2, heads=8, width=1024, block_size=128)
my_batch, my_length, reason = 1, 128, "A"
fp32_peak_gib = amp_peak_gib = 0.774
""",
    }),
)  # fmt: skip

_STEP = (
    '    def step():\n        with torch.autocast(device_type, dtype=torch.bfloat16, enabled=recipe == "amp-bf16"):\n'
)
_MEASURED = "    with probe(model, optimizer) as measured:\n        step()\n    return measured.peak_bytes"
_WARM_UP = "    with probe(model, optimizer):\n        step()\n"

WRONG = (
    # what is stored
    Answer("autocast stores 16-bit numbers", {"static-bytes": (('recipe == "bf16" else 4', 'recipe != "fp32" else 4'),)},
           {AUTOCAST: "autocast-stores-16-bit"}),
    Answer("the cast copies are stored", {"static-bytes": (
        ('"weights": number_bytes * n_params', '"weights": (6 if recipe == "amp-bf16" else number_bytes) * n_params'),)},
           {AUTOCAST: "cast-copies-are-stored"}),
    Answer("one of Adam's two moments", {"static-bytes": (("2 * number_bytes", "number_bytes"),)},
           {STORED: "one-moment", AUTOCAST: "one-moment"}),
    Answer("moments stay FP32", {"static-bytes": (("2 * number_bytes * n_params", "8 * n_params"),)},
           {STORED: "moments-stay-fp32"}),
    Answer("unknown recipes are taken for fp32", {"static-bytes": (('if recipe not in ("fp32", "amp-bf16", "bf16")', "if False"),)},
           {STORED: "unknown-recipe-taken"}),
    Answer("gigabytes", {"static-bytes": (("* n_params", "* n_params / 1e9"),)}, {STORED: None, AUTOCAST: None}),
    Answer("16-bit gradients under autocast", {"static-bytes": (
        ('"gradients": number_bytes', '"gradients": (4 if recipe == "fp32" else 2)'),)}, {AUTOCAST: "gradients-in-16-bit"}),
    Answer("an unknown recipe ends in a KeyError", {"static-bytes": (
        ('if recipe not in ("fp32", "amp-bf16", "bf16")', "if False"),
        ('2 if recipe == "bf16" else 4', '{"fp32": 4, "amp-bf16": 4, "bf16": 2}[recipe]'))}, {STORED: "unknown-recipe-taken"}),
    # the peak of an fp32 step
    Answer("the first step outside of the probe", {PEAK: (("    with probe(model, optimizer):\n        step()\n", "    step()\n"),)},
           {FP32: "step-outside-a-probe", RECIPES: "step-outside-a-probe"}),
    Answer("peak read before the optimizer exists", {PEAK: (
        (_WARM_UP, ""), ("        step()  # makes Adam's state\n", ""))}, {FP32: "before-the-optimizer"}),
    Answer("forward and backward only, no optimizer at all", {PEAK: (
        (_WARM_UP, ""), ("        step()  # makes Adam's state\n", ""),
        ("        optimizer.step()\n        optimizer.zero_grad()\n", ""))},
           {FP32: "before-the-optimizer"}),
    Answer("optimizer.step() after the measurement", {PEAK: (
        ("        optimizer.step()\n        optimizer.zero_grad()\n", ""),
        ("makes Adam's state\n", "\n        optimizer.step(); optimizer.zero_grad()\n"),
        ("    with probe(model, optimizer):\n        step()\n",
         "    with probe(model, optimizer):\n        step()\n        optimizer.step(); optimizer.zero_grad()\n"),
    )}, {FP32: "step-left-out"}),
    Answer("what is left at the end of the step", {PEAK: (
        ("measured.peak_bytes", "measured.trace.live_total[-1]"), ("max_memory_allocated", "memory_allocated"))},
           {FP32: "end-of-step"}),
    Answer("the same on a card alone", {PEAK: (("max_memory_allocated", "memory_allocated"),)}, {RELEASED: "end-of-step"}),
    Answer("AdamW as it comes", {PEAK: ((", foreach=True", ""),)}, {FP32: "other-optimizer"}),
    Answer("SGD", {PEAK: (("AdamW(model.parameters(), foreach=True)", "SGD(model.parameters(), lr=0.1)"),)},
           {FP32: "other-optimizer"}),
    Answer("the gradients of the step before", {PEAK: (("        optimizer.zero_grad()\n", ""),)}, {FP32: "gradients-kept"}),
    Answer("GiB instead of bytes", {PEAK: (
        ("return measured.peak_bytes", "return measured.peak_bytes / 2**30"),
        ("torch.cuda.max_memory_allocated(device)", "torch.cuda.max_memory_allocated(device) / 2**30"))},
           {FP32: "unit-not-bytes"}),
    Answer("bytes of the first step, in GB", {PEAK: (
        (_WARM_UP, ""), ("measured.peak_bytes", "measured.peak_bytes / 1e9"),
        ("torch.cuda.max_memory_allocated(device)", "torch.cuda.max_memory_allocated(device) / 1e9"))},
           {FP32: None}),
    Answer("a peak that only grows", {PEAK: (
        ("def measure_peak", "highest = 0\n\ndef measure_peak"),
        ("return measured.peak_bytes", "global highest\n    highest = max(highest, measured.peak_bytes)\n    return highest"))},
           {FP32: "peak-never-reset", RECIPES: "peak-never-reset"}),
    Answer("everything on the device counted, a tensor of another cell with it", {PEAK: (
        ("def measure_peak", "left_over = torch.zeros(2**21)\n\ndef measure_peak"),
        ("probe(model, optimizer) as measured", "probe(model, optimizer, everything=True) as measured"))},
           {FP32: "others-counted"}),
    # the recipes
    Answer("model.half() called autocast", {PEAK: (
        ('    if recipe == "bf16":\n', '    if recipe == "amp-bf16":\n        model.half()\n    if recipe == "bf16":\n'),
        ('enabled=recipe == "amp-bf16"', "enabled=False"))}, {RECIPES: "half-called-autocast"}),
    Answer("the model cast, and autocast around it", {PEAK: (('    if recipe == "bf16":\n', '    if recipe != "fp32":\n'),)},
           {RECIPES: "half-called-autocast"}),
    Answer("no recipe at all", {PEAK: (
        ("        model.bfloat16()", "        pass"), ('enabled=recipe == "amp-bf16"', "enabled=False"))},
           {RECIPES: "recipe-ignored"}),
    Answer("autocast forgotten", {PEAK: (('enabled=recipe == "amp-bf16"', "enabled=False"),)}, {RECIPES: "autocast-left-out"}),
    Answer("autocast in FP16", {PEAK: (("dtype=torch.bfloat16, enabled", "dtype=torch.float16, enabled"),)},
           {RECIPES: "autocast-in-fp16"}),
    Answer("autocast for cuda, whatever the device", {PEAK: (("torch.autocast(device_type,", 'torch.autocast("cuda",'),)},
           {RECIPES: "autocast-elsewhere"}),
    Answer("bf16 by autocast, too", {PEAK: (
        ("        model.bfloat16()", "        pass"), ('enabled=recipe == "amp-bf16"', 'enabled=recipe != "fp32"'))},
           {RECIPES: "bf16-by-autocast"}),
    Answer("half() for BF16", {PEAK: (("model.bfloat16()", "model.half()"),)}, {RECIPES: "half-is-fp16"}),
    # what is older
    Answer("peak never reset", {PEAK: (("        torch.cuda.reset_peak_memory_stats(device)\n", ""),)},
           {RELEASED: "peak-never-reset"}),
    Answer("the first model still alive", {PEAK: (
        ("def measure_peak", "models = []\n\ndef measure_peak"),
        ("    optimizer = torch", "    models.append(model)\n    optimizer = torch"))}, {RELEASED: "older-model-alive"}),
    Answer("a copy in BF16 beside the model", {PEAK: (
        ("        model.bfloat16()", "        original, model = model, copy.deepcopy(model).bfloat16()"),
        ("import torch\n", "import copy\nimport torch\n"))}, {RELEASED: "older-model-alive"}),
    # the verdict
    Answer("ratio upside down", {"verdict": (('peaks[recipe] / peaks["fp32"]', 'peaks["fp32"] / peaks[recipe]'),)},
           {"verdict-tests": "ratio-upside-down"}),
    Answer("halved peaks", {"verdict": (('2 * stored[recipe] <= stored["fp32"]', '2 * peaks[recipe] <= peaks["fp32"]'),)},
           {"verdict-tests": "halves-from-peaks"}),
    Answer("less than half", {"verdict": (('2 * stored[recipe] <= stored', "2 * stored[recipe] < stored"),)},
           {"verdict-tests": "half-is-not-enough"}),
    Answer("fp32 in the verdict", {"verdict": (('recipes = ("amp-bf16", "bf16")', "recipes = tuple(static)"),)},
           {"verdict-tests": "fp32-among-them"}),
    # one's own configuration
    Answer("GB for GiB", {"own-configuration": (("1.40, 1.05", "1.5065, 1.129"),)}, {"own-peaks": "gb-for-gib"}),
    Answer("half of the fp32 peak, not measured", {"own-configuration": (("1.40, 1.05", "1.40, 0.70"), ('"B"', '"C"'))},
           {"own-peaks": "autocast-halves-everything", "own-reason": "autocast-halves-everything"}),
    Answer("the reason for another configuration", {"own-configuration": (('"B"', '"A"'),)}, {"own-reason": "wrong-moment"}),
    Answer("the example's configuration", {"own-configuration": (
        ("vocab=8192, layers=6, heads=8, width=512, block_size=512", "vocab=4096, layers=4, heads=8, width=512, block_size=256"),
        ("8, 512\n", "8, 256\n"))}, {"own-peaks": None, "own-reason": None}),
)  # fmt: skip
