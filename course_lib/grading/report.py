"""``grades.csv``, ``questions.csv``, the class page, what Canvas and Moodle import, and feedback to send back."""

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from course_lib.grading.feedback import PAGE, feedback_html
from course_lib.grading.misconceptions import all_mistakes
from course_lib.grading.outbox import write
from course_lib.grading.rows import Row
from course_lib.i18n import _, set_language

GRADES = ("student", "assignment", "score", "max_score", "status", "reason")
QUESTIONS = ("student", "assignment", "question", "score", "max_score", "reason")


def write_reports(folder: Path, rows: Sequence[Row], language: str | None) -> None:
    """All files of the report, each whole or not at all.

    Args:
        language: of the feedback; None: each in the language of what was handed in.
    """
    write(folder / "grades.csv", _csv(GRADES, _grades(rows)))
    write(folder / "questions.csv", _csv(QUESTIONS, _questions(rows)))
    pages: dict[str, dict[str, str]] = {}
    for row in rows:
        set_language(language or row.graded.language)
        html = feedback_html(row)
        write(folder / "feedback" / row.student / f"{row.assignment.name}.html", html)
        pages.setdefault(row.assignment.name, {})[row.student] = html
    set_language(language or "en")
    write(folder / "class.html", _class_page(rows))
    for assignment, by_student in pages.items():
        write(folder / "upload" / f"{assignment}_feedback.zip", _zip(by_student, assignment))
    write(folder / "upload" / "canvas.csv", _canvas(rows))
    for assignment in pages:
        write(folder / "upload" / f"moodle_{assignment}.csv", _moodle(row for row in rows
              if row.assignment.name == assignment))  # fmt: skip
    set_language("en")


def number(value: float) -> str:
    return f"{round(value, 2):g}"


def _grades(rows: Iterable[Row]) -> Iterable[Sequence[str]]:
    for row in rows:
        yield (row.student, row.assignment.name, number(row.score), number(row.graded.max_points), row.graded.status,
               row.graded.reason)  # fmt: skip


def _questions(rows: Iterable[Row]) -> Iterable[Sequence[str]]:
    for row in rows:
        for each in row.graded.scores:
            reasons = [each.reason, each.flag if each.flag != each.reason else ""]
            reasons.append(f"[{each.mistake}]" if each.mistake in all_mistakes() else "")
            yield (row.student, row.assignment.name, each.question, number(each.points or 0), number(each.max_points),
                   " ".join(filter(None, reasons)))  # fmt: skip


def _csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """With a byte order mark, so that spreadsheets read Chinese; no cell begins as a formula does."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([("'" + cell if cell[:1] in "=+-@\t\r" and cell else cell).replace("\x00", "") for cell in row])
    return file.getvalue()


def _canvas(rows: Sequence[Row]) -> str:
    """Canvas's gradebook import: a row for each student, a column for each assignment; empty: leave as it is."""
    names = list(dict.fromkeys(row.assignment.name for row in rows))
    by_student: dict[str, dict[str, str]] = {}
    for row in rows:
        by_student.setdefault(row.student, {})[row.assignment.name] = number(row.score) if _settled(row) else ""
    possible = {row.assignment.name: number(row.graded.max_points) for row in rows}
    header = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section", *names)
    points = ("    Points Possible", "", "", "", "", *(possible[name] for name in names))
    lines = ((student, "", student, student, "", *(scores.get(name, "") for name in names))
             for student, scores in by_student.items())  # fmt: skip
    return _csv(header, [points, *lines])


def _moodle(rows: Iterable[Row]) -> str:
    """Moodle's grade import: match ``ID number``; ``Grade`` is the assignment's, ``Feedback comments`` its feedback."""
    return _csv(("ID number", "Grade", "Feedback comments"),
                ((row.student, number(row.score) if _settled(row) else "", row.graded.reason if _settled(row) else "")
                 for row in rows))  # fmt: skip


def _settled(row: Row) -> bool:
    """Whether the score may go out without a person: what needs one stays empty."""
    return row.graded.status == "graded"


def _zip(pages: Mapping[str, str], assignment: str) -> bytes:
    """One file a student; the same bytes for the same pages."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for student, html in sorted(pages.items()):
            archive.writestr(zipfile.ZipInfo(f"{student}/{assignment}.html", (1980, 1, 1, 0, 0, 0)), html)
    return buffer.getvalue()


def _class_page(rows: Sequence[Row]) -> str:
    """Which misconception how often, and how each question went; no names."""
    title, question, full_points = _("The class"), _("question"), _("full points")
    parts = [f"<h1>{escape(title)}</h1>"]
    for name in dict.fromkeys(row.assignment.name for row in rows):
        ours = [row for row in rows if row.assignment.name == name and row.has_score]
        count = _("Submissions with scores: {count}").format(count=len(ours))
        parts.append(f"<h2>{escape(name)}</h2><p>{escape(count)}</p>")
        lines = [f"<tr><th>{escape(question)}</th><th>{escape(full_points)}</th></tr>"]
        for grade_id in dict.fromkeys(each.question for row in ours for each in row.graded.scores):
            each = [score for row in ours for score in row.graded.scores if score.question == grade_id]
            marked = [score for score in each if score.points is not None]
            full = sum(score.points == score.max_points for score in marked)
            lines.append(f"<tr><td>{escape(grade_id)}</td><td>{full} / {len(marked)}</td></tr>")
        parts.append(f"<table>{''.join(lines)}</table>")
        parts += _misconceptions(ours)
    return PAGE.format(title=escape(title), body="\n".join(parts))


def _misconceptions(rows: Sequence[Row]) -> list[str]:
    """The named ones, the most frequent first; each counts once for a student."""
    known = all_mistakes()
    seen = Counter(name for row in rows for name in {each.mistake for each in row.graded.scores} if name in known)
    lines = []
    for name, count in sorted(seen.items(), key=lambda item: (-item[1], str(item[0]))):
        mistake = known[str(name)]
        lines.append(
            f"<p><b>{count} × {escape(mistake.name)}</b>: {escape(_(mistake.says))} ({escape(mistake.where)})</p>"
        )
    return lines
