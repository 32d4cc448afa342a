"""A student's page: each question with its points, what its test said, and the misconception that it looks like.

Everything on it comes from the first run, in which no hidden test was in reach, or is written here: no hidden source,
no reference solution.
"""

from html import escape
from typing import Any

from course_lib.grading.misconceptions import all_mistakes
from course_lib.grading.rows import Row
from course_lib.grading.score import ASKED_FROM_OUTSIDE, GONE, Score
from course_lib.i18n import _, get_language

PAGE = """<!doctype html>
<html><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem; color: #1c2330 }}
table {{ border-collapse: collapse }} td, th {{ text-align: left; padding: .25rem 1rem .25rem 0 }}
pre {{ background: #f4f6f9; padding: .7rem; font-size: 14px; white-space: pre-wrap }}
.full {{ color: #16703c }} .lost {{ color: #a3261f }} .person {{ color: #7a5b00 }} img {{ max-width: 100% }}
</style></head><body>
{body}
</body></html>
"""
_MOST_SHOWN = 4000  #: characters of one output


def feedback_html(row: Row) -> str:
    """The page of one submission, in the language that is set."""
    graded = row.graded
    title = f"{row.assignment.name} · {row.student}"
    parts = [f"<h1>{escape(title)}</h1>", f"<p><b>{row.score:g} / {graded.max_points:g}</b></p>"]
    if graded.status != "graded":
        said = {"needs-human": _("A person looks at this submission before its score is final."),
                "failed": _("The grader could not do its work; a person looks at it.")}[graded.status]  # fmt: skip
        parts.append(f"<p class=person>{escape(said)}</p>")
    if not row.has_score and graded.reason:
        parts.append(f"<p>{escape(graded.reason)}</p>")
    if row.penalty:
        late = _("Taken off for lateness: {points}").format(points=f"{row.penalty:g}")
        parts.append(f"<p>{escape(late)}</p>")
    if graded.notes:
        lines = "".join(f"<li>{escape(note)}</li>" for note in graded.notes)
        repaired = _("Repaired before grading:")
        parts.append(f"<p>{escape(repaired)}</p><ul>{lines}</ul>")
    errors = {cell["grade_id"]: cell.get("error") for cell in graded.cells if cell["grade_id"]}
    parts += [_question(each, errors.get(each.question)) for each in graded.scores if row.has_score]
    outputs = [(number, cell) for number, cell in enumerate(graded.cells, 1) if cell.get("outputs") or
               (cell.get("error") and not cell["grade_id"]) or cell.get("gone")]  # fmt: skip
    if outputs:
        printed = _("What your cells printed")
        parts.append(f"<h2>{escape(printed)}</h2>")
        parts += [_cell(number, cell) for number, cell in outputs]
    return f"<!-- {get_language()} -->\n" + PAGE.format(title=escape(title), body="\n".join(parts))


def _question(each: Score, error: dict[str, Any] | None) -> str:
    kind = "person" if each.points is None else "full" if each.points == each.max_points else "lost"
    earned = "?" if each.points is None else f"{each.points:g}"
    parts = [f"<h3 class={kind}>{escape(each.question)}: {earned} / {each.max_points:g}</h3>"]
    if error:
        parts.append(f"<pre>{escape(str(error.get('says') or error.get('name'))[:_MOST_SHOWN])}</pre>")
    elif each.hidden:
        hidden = _("The test that you see passes; a hidden one, on other inputs, does not.")
        parts.append(f"<p>{escape(hidden)}</p>")
    elif each.reason:
        parts.append(f"<p>{escape(_reason(each))}</p>")
    mistake = all_mistakes().get(each.mistake or "")
    if mistake and (each.hidden or not error):
        looks_like = _("It looks like [{name}]: {says}").format(name=mistake.name, says=_(mistake.says))
        explained = _("Explained in: {where}").format(where=mistake.where)
        parts.append(f"<p>{escape(looks_like)} ({escape(explained)})</p>")
    return "\n".join(parts)


def _reason(each: Score) -> str:
    """In the reader's language, where it is one of the grader's own."""
    if each.reason.startswith(ASKED_FROM_OUTSIDE):
        return _(ASKED_FROM_OUTSIDE) + _(each.reason.removeprefix(ASKED_FROM_OUTSIDE))
    return _(each.reason)


def _cell(number: int, cell: dict[str, Any]) -> str:
    heading = _("cell {number}").format(number=number)
    parts = [f"<h4>{escape(heading)} {escape(cell['grade_id'])}</h4>"]
    for output in cell.get("outputs", ()):
        if output.get("output_type") == "stream":
            parts.append(f"<pre>{escape(str(output.get('text', ''))[:_MOST_SHOWN])}</pre>")
        else:
            parts.append(_shown(output.get("data", {})))
    error = cell.get("error")
    if error and not cell["grade_id"]:
        line = f" (line {error['line']})" if error.get("line") else ""
        said = f"{error.get('name')}: {error.get('says')}{line}"[:_MOST_SHOWN]
        parts.append(f"<pre>{escape(said)}</pre>")
    if cell.get("gone"):
        stopped = _("stopped here")
        parts.append(f"<p class=lost>{escape(stopped)}: {escape(_(GONE.get(cell['gone'], cell['gone'])))}</p>")
    return "\n".join(parts)


def _shown(data: dict[str, Any]) -> str:
    """A picture or plain text; nothing that a browser would run."""
    picture = "".join(str(data.get("image/png", "")).split())
    if picture and all(letter.isalnum() or letter in "+/=" for letter in picture):
        return f'<img alt="{escape(str(data.get("text/plain", ""))[:200])}" src="data:image/png;base64,{picture}">'
    return f"<pre>{escape(str(data.get('text/plain', ''))[:_MOST_SHOWN])}</pre>"
