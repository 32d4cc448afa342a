"""The clinic: training loops that fail, and a probe that names why.

>>> search("unscale_() has already been called").names[0]
'unscale-twice'
>>> opinion("unscale-twice").names
('unscale-twice',)

Around a loop of one's own::

    with Watch() as watch:
        the_loop()
    diagnose(watch.reading)
"""

from course_lib.clinic.case import BRANCHES, Case
from course_lib.clinic.chart import Chart
from course_lib.clinic.confusion import confusion, confusion_text, draw_confusion
from course_lib.clinic.diagnosis import Diagnosis, Opinion, all_cases, diagnose, find_case
from course_lib.clinic.examine import examine
from course_lib.clinic.reading import Reading
from course_lib.clinic.search import Found, search, search_box, table_of_cases
from course_lib.clinic.tree import draw_tree, tree_text
from course_lib.clinic.visit import chart, opinion, visit, what_changes
from course_lib.clinic.watch import Watch

__all__ = [
    "BRANCHES", "Case", "Chart", "Diagnosis", "Found", "Opinion", "Reading", "Watch", "all_cases", "chart",
    "confusion", "confusion_text", "diagnose", "draw_confusion", "draw_tree", "examine", "find_case", "opinion",
    "search", "search_box", "table_of_cases", "tree_text", "visit", "what_changes",
]  # fmt: skip
