"""The course on one page, to print: an SVG whose figures come from the ledger, the FLOP counter, the cards' table.

>>> save_cheat_sheet("cheat_sheet.svg")  # in the language that is set; a browser prints it on A4  # doctest: +SKIP
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from pathlib import Path
from unicodedata import east_asian_width

from course_lib import ledger
from course_lib.accounts import Account
from course_lib.cards import CARDS, FIRST_WITH_FP16_TENSOR_CORES, FIRST_WITH_NATIVE_BF16, dotted
from course_lib.flops import step_flops
from course_lib.hf_config import read_config, read_model
from course_lib.i18n import _
from course_lib.ledger.head import logit_bytes
from course_lib.recipe import LOSSES, Recipe
from course_lib.units import GB

MODEL = "llama-7b"
ONE = Recipe(batch=1, seq=2048)
LORA = replace(ONE, lora_rank=16)
RECIPES = {
    "fp32": replace(ONE, precision="fp32"),
    "amp-fp16, amp-bf16": replace(ONE, precision="amp-bf16"),
    "master-bf16": replace(ONE, precision="master-bf16"),
    "bf16": ONE,
    "bf16, adamw-8bit": replace(ONE, optimizer="adamw-8bit"),
    "bf16 + LoRA 16": LORA,
    "nf4 + LoRA 16": replace(LORA, quant="nf4", double_quant=True),
}

WIDTH, MARGIN, LINE, SIZE = 1050, 50, 21, 15  #: of the page, in units of a fifth of a millimetre
HEIGHT = 1485
INK, FAINT, ACCENT = "#111111", "#888888", "#0072B2"

Row = Sequence[str]


def save_cheat_sheet(path: str | Path) -> None:
    """Write the page, in the language that is set."""
    Path(path).write_text(cheat_sheet(), encoding="utf-8")


def show_cheat_sheet() -> None:
    """Display the page in a notebook, as an image: of bare SVG, JupyterLab keeps the words alone in a new file."""
    from IPython.display import HTML, display

    data = b64encode(cheat_sheet().encode()).decode()
    alt = _("The cheat sheet on one page: bytes a parameter by recipe, the logits' rule, cuts and their prices, "
            "order of remedies, types by card.")  # fmt: skip
    display(HTML(f'<img alt="{escape(alt)}" width="{WIDTH}" src="data:image/svg+xml;base64,{data}">'))


def cheat_sheet() -> str:
    """The page as SVG."""
    y, body = 78.0, [_text(MARGIN, 60, _("Big Models, Small GPUs: the cheat sheet"), SIZE * 1.7, bold=True)]
    for title, note, widths, rows in _sections():
        y += LINE * 0.9
        body.append(_text(MARGIN, y, title, SIZE * 1.15, bold=True, colour=ACCENT))
        y += LINE
        for line in _wrapped(note, (WIDTH - 2 * MARGIN) / SIZE * 1.9):
            body.append(_text(MARGIN, y, line, SIZE * 0.92))
            y += LINE * 0.95
        body += _table(y, widths, rows)
        y += LINE * len(rows)
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="210mm" height="297mm" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="DejaVu Sans, Noto Sans CJK SC, Microsoft YaHei, PingFang SC, sans-serif">')  # fmt: skip
    title = escape(_("Big Models, Small GPUs: the cheat sheet"))
    paper = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join((head, f"<title>{title}</title>", paper, *body, "</svg>", ""))


def _sections() -> Iterator[tuple[str, str, list[int], Sequence[Row]]]:
    """Title, what to know, column widths and the table, head first."""
    params = read_model(MODEL).params
    peak = _("A peak is a maximum over moments, not a sum. Per parameter, AdamW; the step adds what the update "
             "takes (foreach; fused takes none). Adam's state appears in the first step. "
             "1 GiB = 1.074 GB.")  # fmt: skip
    accounts = (_("weights"), _("gradients"), _("optimizer"))
    rows: list[Row] = [(_("recipe"), *accounts, _("stays"), _("at the step"), _("7B stays, GB"))]
    for name, recipe in RECIPES.items():
        bill = ledger.predict(read_model(MODEL), recipe)
        parts = [size / params for size in bill.static_bytes.values()]
        step = bill.at(ledger.Instant.OPTIMIZER_STEP)
        update = step[Account.TEMPORARY] / params
        rows.append((name, *(f"{part:.2f}" for part in (*parts, sum(parts), sum(parts) + update)),
                     f"{sum(parts) * params / GB:.1f}"))  # fmt: skip
    yield _("1  Bytes a parameter"), peak, [260, 100, 110, 110, 100, 130, 140], rows

    note = _("Bytes = tokens in the micro-batch × words × bytes a logit, whatever checkpointing, LoRA and quantisation "
             "do. BF16; at the end of the forward pass and at the gradient.")  # fmt: skip
    rows = [(_("loss"), _("forward"), _("backward"), _("4 × 2048 tokens, 32,000 words, GB"),
             _("the same with 152,000"))]  # fmt: skip
    for loss in LOSSES:
        forward, _kept, backward = logit_bytes(replace(ONE, loss=loss))
        most = max(forward, backward)
        rows.append((loss, f"{forward:g}", f"{backward:g}", f"{most * 8192 * 32_000 / GB:.1f}",
                     f"{most * 8192 * 152_000 / GB:.1f}"))  # fmt: skip
    yield _("2  Logits"), note, [200, 110, 110, 310, 220], rows

    note = _("Llama-2-7B, 32 × 2048 tokens an update, one cut after the other. Operations a parameter and token; "
             "savings depend on the order.")  # fmt: skip
    rows = [(_("cut"), _("peak, GB"), _("operations"), _("takes off, and its price")), *_cuts()]
    yield _("3  What each cut saves and costs"), note, [230, 110, 120, 400], rows

    steps = [
        _("In which moment is the peak? In the step: optimizer (fused, 8-bit), LoRA. In backward: activations, "
          "logits."),
        _("Nothing lost: fused optimizer; no_grad in validation; drop what the caller holds; flash attention."),
        _("Smaller micro-batch, accumulated, losses summed and divided by all tokens of the window."),
        _("Checkpointing of every block: about a quarter more operations, with LoRA more than a third."),
        _("A fused or chunked loss where the vocabulary is large."),
        _("LoRA on 16-bit weights; then NF4 weights; then shorter sequences or a smaller model."),
    ]
    rows = [("", ""), *((f"{number}", text) for number, text in enumerate(steps, 1))]
    note = _("First whose bytes they are, then the cheapest cut that hits them.")
    yield _("4  Order of remedies"), note, [30, 900], rows

    rows = [(_("compute capability"), _("train in"), _("cards"))]
    for at_least, dtype, words in (
        (FIRST_WITH_NATIVE_BF16, "bf16", _("pure, or under autocast; no scaler")),
        (FIRST_WITH_FP16_TENSOR_CORES, "fp16",
         _("amp-fp16 with GradScaler; is_bf16_supported() says True by emulation")),
        ((0, 0), "fp32", _("16 bits save memory, little time")),
    ):
        names = [card.name for card in CARDS if card.training_type().dtype == dtype]
        shown = ", ".join(names[:: max(1, len(names) // 5)][:6])  # six of them, from small to large
        since = _("from {number}").format(number=dotted(at_least)) if any(at_least) else _("below")
        rows += [(since, dtype, shown), ("", "", words)]
    note = _("By compute capability, not by what PyTorch says it can run.")
    yield _("5  Which type for which card"), note, [190, 110, 640], rows


def _table(y: float, widths: Sequence[int], rows: Sequence[Row]) -> Iterator[str]:
    """Rows of text from ``y`` on, the first one bold and underlined; columns of numbers are aligned at their right."""
    for number, row in enumerate(rows):
        x = float(MARGIN)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            at_right = column > 0 and _is_number(rows[-1][column])
            place, anchor = (x + width - 12, "end") if at_right else (x, "start")
            yield _text(place, y, cell, SIZE * 0.92, bold=number == 0, anchor=anchor)
            x += width
        if number == 0:
            yield f'<path d="M{MARGIN} {y + 5:.0f}H{WIDTH - MARGIN}" stroke="{FAINT}" stroke-width="0.8"/>'
        y += LINE


@cache
def _cut_bills() -> tuple[tuple[str, float, float], ...]:
    """Name, peak in GB, and operations a parameter and token, cut after cut."""
    shape, config = read_model(MODEL), read_config(MODEL)
    recipe, found = Recipe(precision="fp32", batch=32, seq=2048), []
    changes = {"FP32": {}, "accumulate": {"batch": 4, "accum": 8}, "bf16": {"precision": "bf16"},
               "LoRA": {"lora_rank": 16}, "checkpoint": {"checkpoint": "block"},
               "nf4": {"quant": "nf4", "double_quant": True}}  # fmt: skip
    for name, change in changes.items():
        recipe = replace(recipe, **change)  # type: ignore[arg-type]
        operations = step_flops(config, recipe) / shape.params / (32 * 2048)
        found.append((name, ledger.predict(shape, recipe).peak_bytes / GB, operations))
    return tuple(found)


def _cuts() -> Iterator[Row]:
    words = {
        "FP32": (_("FP32, 32 at once"), ""),
        "accumulate": (_("accumulate 8 × 4"), _("activations, logits; gradients stay; a less busy card")),
        "bf16": (_("pure BF16"), _("half of all; small updates are rounded away")),
        "LoRA": (_("LoRA, rank 16"), _("gradients, optimizer; learns a change of low rank")),
        "checkpoint": (_("checkpointing, each block"), _("activations, not logits; one more forward pass")),
        "nf4": (_("NF4 weights"), _("frozen weights; each product unpacks its matrix")),
    }
    for name, peak, operations in _cut_bills():
        yield words[name][0], f"{peak:.1f}", f"{operations:.2f}", words[name][1]


def _text(
    x: float, y: float, text: str, size: float, *, bold: bool = False, colour: str = INK, anchor: str = "start"
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>")  # fmt: skip


def _is_number(text: str) -> bool:
    return text.replace(".", "").isdigit()


def columns(text: str) -> int:
    """How wide a text is, a Latin letter being 1 and a Chinese character 2."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _wrapped(text: str, most: float) -> Iterator[str]:
    """Lines of at most ``most`` columns; Chinese breaks anywhere, English between words."""
    line = ""
    for piece in (text if any(east_asian_width(each) == "W" for each in text) else _words(text)):
        if columns(line + piece) > most:
            yield line.rstrip()
            line = piece.lstrip()
        else:
            line += piece
    yield line.rstrip()


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split()]
