"""The referee's own small steps; what it says of whole submissions is in the other files of this folder."""

import re

from course_lib.grading.referee import imports_of, reseeded


def test_tests_that_share_a_seed_share_the_fresh_one() -> None:
    def seeds(code: str, run: str) -> list[str]:
        return re.findall(r"seed=(\d+)", reseeded(code, run))

    [one] = seeds("check(f, seed=7)", "first run")
    assert one != "7"
    assert seeds("check(g, seed=7)", "first run") == [one]
    assert seeds("check(g, seed=7)", "second run") != [one]
    assert seeds("check(f, seed=7); check(f, seed=8)", "first run") != [one, one]


def test_a_hidden_part_may_rely_on_the_imports_of_the_visible_one() -> None:
    visible = "import torch\nfrom course_lib.exercises import precision as p\n\np.check_peak(measure_peak)\n"
    assert imports_of(visible) == "import torch\nfrom course_lib.exercises import precision as p\n"
