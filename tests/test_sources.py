"""A source that would not become two equal editions is refused, with the file and the line."""

import re
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.pipeline.pairs import difference
from course_lib.pipeline.sources import read_unit

LESSON = """\
# %% [markdown] lang="en"
# # Title
#
# The step holds $4n$ bytes, see [the source](https://example.org/a).

# %% [markdown] lang="zh"
# # 标题
#
# 这一步占用 $4n$ 字节，见[出处](https://example.org/a)。

# %% tags=["setup"]
LANGUAGE = "en"

# %%
guess = ...
### BEGIN SOLUTION
guess = 28
### END SOLUTION
"""

EXERCISE = """\
# %% [markdown] lang="en"
# # Title

# %% [markdown] lang="zh"
# # 标题

# %% tags=["setup"]
LANGUAGE = "en"

# %% answer="double"
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION

# %% tests="double-tests" points=2
assert double(2) == 4
### BEGIN HIDDEN TESTS
assert double(21) == 42
### END HIDDEN TESTS

# %% [markdown] lang="en" written="why" points=3
# ### BEGIN SOLUTION
# Because.
# ### END SOLUTION

# %% [markdown] lang="zh" written="why" points=3
# ### BEGIN SOLUTION
# 因为。
# ### END SOLUTION
"""


def source(folder: Path, text: str, name: str = "00_demo") -> Path:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_cells_carry_both_languages_their_lines_and_what_nbgrader_needs(tmp_path: Path) -> None:
    unit = read_unit(source(tmp_path, EXERCISE, "ex1_demo"))
    assert [cell.kind for cell in unit.cells] == ["markdown", "code", "code", "code", "markdown"]
    lines = EXERCISE.splitlines()
    for cell in unit.cells:
        assert lines[cell.line - 1].startswith("# %%")
    assert unit.cells[0].text == {"en": "# Title", "zh": "# 标题"}
    assert unit.cells[2].text["en"] == unit.cells[2].text["zh"]
    flags = [
        (cell.nbgrader["grade_id"], cell.nbgrader["grade"], cell.nbgrader["solution"], cell.nbgrader.get("points"))
        for cell in unit.cells
        if cell.nbgrader
    ]
    assert flags == [("double", False, True, None), ("double-tests", True, False, 2), ("why", True, True, 3)]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        (LESSON[LESSON.index('# %% [markdown] lang="zh"') : LESSON.index("# %% tags")], "", 6, "twin"),
        ('# %% [markdown] lang="zh"\n', '# %% [markdown] lang="en"\n', 6, "twin"),
        ('# %% [markdown] lang="en"\n', "# %% [markdown]\n", 1, 'lang="en"'),
        ("# # 标题", "# ## 标题", 6, "headings differ: h1 in English, h2 in Chinese"),
        ("占用 $4n$", "占用 $2n$", 6, "formula in English only: 4n"),
        ("[出处](https://example.org/a)", "出处", 6, "link in English only: https://example.org/a"),
        ("# 这一步", "# ![图](p.png) 这一步", 6, "picture in Chinese only: p.png"),
        ("# The step", "The step", 4, "begins with '# '"),
        ("# The step", "#The step", 4, "begins with '# '"),
        ('# %% [markdown] lang="zh"', '# %% [markdown] lang="zh', 6, "broken cell header"),
        ('# %% [markdown] lang="zh"', '#%% [markdown] lang="zh"', 6, "broken cell header"),
        ('# %% [markdown] lang="zh"', '# % [markdown] lang="zh"', 6, "broken cell header"),
        ('# %% [markdown] lang="zh"', '# %% [markdwon] lang="zh"', 6, "broken cell header"),
        ('# %%\nguess', '# %% points=2\nguess', 14, "points without"),
        ('# %%\nguess', '# %% colour="red"\nguess', 14, "unknown key 'colour'"),
        ('# %%\nguess', '# %% answer="a"\nguess', 14, "belongs to exercises"),
        ('# %%\nguess', '# %% tags="setup"\nguess', 14, "broken cell header"),
        ('tags=["setup"]', 'tags=["set-up"]', 1, "expected exactly one"),
        ('LANGUAGE = "en"', "LANGUAGE = 'en'", 11, "setup cell holds"),
        ("### BEGIN SOLUTION\n", "", 17, "END SOLUTION without its BEGIN"),
        ("### END SOLUTION\n", "", 16, "BEGIN SOLUTION without its END"),
        ("BEGIN SOLUTION", "BEGIN HIDDEN TESTS", 18, "END SOLUTION without"),
        ("guess = ...", "guess = (", 15, "not Python"),
        ('# %%\nguess', '# %%\n\n# %%\nguess', 14, "empty"),
        ('# %% [markdown] lang="en"', 'import os\n# %% [markdown] lang="en"', 1, "begin with a cell header"),
    ],
)  # fmt: skip
def test_refusals_name_file_and_line(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    assert old in LESSON, "the mutation must change something"
    with pytest.raises(CourseError) as refused:
        read_unit(source(tmp_path, LESSON.replace(old, new, 1)), Path("solutions/00_demo/00_demo.py"))
    message = str(refused.value)
    assert message.startswith(f"solutions/00_demo/00_demo.py:{line}: "), message
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('tests="double-tests"', 'tests="double"', 16, "grade id 'double' is taken by the cell of line 10"),
        (' points=2', "", 16, "points: got None"),
        (' points=2', ' points="two"', 16, "points: got 'two'"),
        ('answer="double"', 'answer="double" points=1', 10, "points: got 1, expected none"),
        ('answer="double"', 'answer="dou ble"', 10, "expected letters"),
        ('answer="double"', 'answer="double" readonly="x"', 10, "one thing to nbgrader"),
        ('answer="double"', 'written="double" points=1', 10, "cannot stand in a code cell"),
        ("# %% answer=\"double\"", "# %%", 10, "BEGIN SOLUTION outside an answer or written cell"),
        ('tests="double-tests" points=2', 'readonly="double-tests"', 16, "BEGIN HIDDEN TESTS outside a tests cell"),
        ('lang="zh" written="why" points=3', 'lang="zh" written="why" points=4', 27, "differs from its English twin's"),
        ('lang="zh" written="why" points=3', 'lang="zh"', 27, "BEGIN SOLUTION outside"),
    ],
)  # fmt: skip
def test_refusals_in_exercises(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    assert EXERCISE.count(old) == 1
    with pytest.raises(CourseError, match=re.escape(says)) as refused:
        read_unit(source(tmp_path, EXERCISE.replace(old, new), "ex1_demo"), Path("s.py"))
    assert str(refused.value).startswith(f"s.py:{line}: ")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "00_demo.py"
    path.write_bytes(b"# %% \xff\xfe")
    with pytest.raises(CourseError, match="00_demo.py:1: cannot be read"):
        read_unit(path)


def test_words_inside_a_formula_may_be_translated() -> None:
    english, chinese = r"$n_\text{layers} \cdot 4$ and `code` of **2**", r"`代码` 与 $n_\text{层} \cdot 4$"
    assert difference(english, chinese) is None


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("| a |\n|---|\n| 1 |\n| 2 |", "| a |\n|---|\n| 1 |"),
        ("```python\nx\n```", "x"),
        ("$$a$$", "a"),
        ("$a$ $a$", "$a$"),
        ("<https://a.org>", "https://b.org"),
        ("# a\n## b", "## b\n# a"),
    ],
)
def test_structures_that_differ(english: str, chinese: str) -> None:
    assert difference(english, chinese)
    assert difference(chinese, english)
    assert difference(english, english) is None


def test_stars_that_markdown_does_not_take_for_bold_are_refused() -> None:
    assert difference("**“a.”** b", "他说**“先预测。”**再测") == (
        "** that is not shown as bold in Chinese: '他说**“先预测。”**再测'; put a space outside it"
    )
    assert difference("**“a.”** b", "他说 **“先预测。”** 再测") is None
    assert difference("`2**30` bytes", "`2**30` 字节") is None


def test_money_is_no_formula() -> None:
    assert difference("costs \\$3 or \\$4", "要 3 到 4 美元") is None
