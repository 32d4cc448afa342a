"""How a report looks in a terminal: one unit throughout, 80 columns suffice, plain text where it is piped."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from course_lib.accounts import ACCOUNTS, STEP_MOMENTS, Account
from course_lib.ledger import Bill
from course_lib.recipe import Recipe
from course_lib.report import STATIC_ACCOUNTS, Report
from course_lib.units import GIB, Unit, format_bytes, in_unit

COLOURS = {
    Account.WEIGHTS: "blue",
    Account.GRADIENTS: "cyan",
    Account.OPTIMIZER: "magenta",
    Account.ACTIVATIONS: "green",
    Account.TEMPORARY: "yellow",
}
VERDICT_COLOURS = {"fits": "green", "tight": "yellow", "does-not-fit": "red"}
#: What goes without saying in a recipe's one line, unless it was changed.
_ALWAYS_SAID = ("precision", "optimizer", "optimizer_impl", "batch", "seq")


def show_report(report: Report) -> None:
    """Print who owns the bytes at the peak, when the peak is, whether the card takes it, and a bill's lines."""
    unit = unit_of(report.forecast.peak_bytes)
    console = Console(highlight=False)
    console.print(_heading(report, unit))
    console.print(_accounts_table(report, unit))
    console.print(_moments_table(report, unit))
    console.print(card_sentences(report))
    if isinstance(report.forecast, Bill):
        console.print(_entries_table(report.forecast))


def _entries_table(bill: Bill) -> Table:
    """The bill's lines that make up the peak, the largest first."""
    unit = unit_of(bill.peak_bytes)
    table = plain_table("account", "what the peak consists of", unit, "formula")
    for entry in sorted(bill.entries_at(bill.peak_instant), key=lambda entry: -entry.size_bytes):
        account = Text(str(entry.account), style=COLOURS[entry.account])
        table.add_row(account, Text(entry.label), number(entry.size_bytes, unit), Text(entry.formula))
    return table


def _heading(report: Report, unit: Unit) -> Text:
    trained = "all trained" if report.trainable == report.params else f"{report.trainable:,} trained"
    return Text.assemble(
        (report.model, "bold"),
        f": {report.params:,} parameters, {trained}\n{in_words(report.recipe)}\n\nPeak ",
        (format_bytes(report.forecast.peak_bytes, unit), "bold"),
        f" allocated, in {report.forecast.peak_moment}",
    )


def in_words(recipe: Recipe) -> str:
    usual = Recipe().to_dict()
    said = {name: value for name, value in recipe.to_dict().items() if name in _ALWAYS_SAID or value != usual[name]}
    return ", ".join(name.replace("_", "-") + ("" if value is True else f" {value}") for name, value in said.items())


def _accounts_table(report: Report, unit: Unit) -> Table:
    peak_bytes, static = report.forecast.peak_bytes, report.forecast.static_bytes
    table = plain_table("account", f"{unit} at the peak", "share", "", f"{unit} that stay")
    for account in ACCOUNTS:
        stays = number(static[account], unit) if account in STATIC_ACCOUNTS else ""
        cells = _row(str(account), report.forecast.at_peak[account], peak_bytes, unit, COLOURS[account])
        table.add_row(*cells, stays)
    total_static = sum(static[account] for account in STATIC_ACCOUNTS)
    footers = ("together", number(peak_bytes, unit), "", "", number(total_static, unit))
    table.show_footer = True
    for column, footer in zip(table.columns, footers, strict=True):
        column.footer = footer
    return table


def _moments_table(report: Report, unit: Unit) -> Table:
    forecast = report.forecast
    table = plain_table("moment", f"{unit} at most", "of the peak", "", "")
    for moment in STEP_MOMENTS:
        is_peak = moment == forecast.peak_moment
        cells = _row(str(moment), forecast.moment_peaks[moment], forecast.peak_bytes, unit, "red" if is_peak else "")
        table.add_row(*cells, "the peak" if is_peak else "")
    return table


def card_sentences(report: Report) -> Text:
    device, card = report.device, report.card
    holds = f"PyTorch holds {format_bytes(report.reserved_bytes)} for it. " if report.reserved_bytes else ""
    said = Text(
        f"{holds}On the card, with CUDA context and allocator slack: "
        f"{format_bytes(device.low_bytes)} to {format_bytes(device.high_bytes)}."
    )
    if card is None or report.verdict is None:
        return said
    gap = {
        "fits": f"{format_bytes(card.usable_bytes - device.high_bytes)} to spare at least",
        "tight": f"it runs if the allocator wastes less than {format_bytes(card.usable_bytes - device.low_bytes)}",
        "does-not-fit": f"{format_bytes(device.low_bytes - card.usable_bytes)} short at least",
    }[report.verdict]
    verdict = (report.verdict.replace("-", " "), f"bold {VERDICT_COLOURS[report.verdict]}")
    return Text.assemble(said, f"\n{card.name}, {format_bytes(card.usable_bytes)} usable: ", verdict, f"; {gap}.")


def _row(name: str, size_bytes: int, of_bytes: int, unit: Unit, colour: str) -> tuple[Text, str, str, ProgressBar]:
    share = size_bytes / of_bytes if of_bytes else 0.0
    bar = ProgressBar(1.0, share, width=20, complete_style=colour, finished_style=colour, style="none")
    return Text(name, style=colour), number(size_bytes, unit), f"{share:.1%}", bar


def unit_of(peak_bytes: int) -> Unit:
    return "GiB" if peak_bytes >= GIB else "MiB"


def number(size_bytes: int, unit: Unit) -> str:
    return f"{in_unit(size_bytes, unit):,.2f}"


def plain_table(*headers: str) -> Table:
    """A table in which the columns of numbers, known by their headers, are flush right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        numeric = header.startswith(("GiB", "MiB", "share", "of the peak"))
        table.add_column(header, justify="right" if numeric else "left")
    return table
