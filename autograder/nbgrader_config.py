"""nbgrader's settings for this course; run its commands, and JupyterLab for formgrader, in this folder.

`course build` fills source/, nbgrader everything else: release/, submitted/, autograded/, feedback/, gradebook.db.
"""

import os
from pathlib import Path

# The tests' models are tiny. Threads that wait for one another on a busy machine take twenty times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

c = get_config()  # noqa: F821 - nbgrader puts it there

c.CourseDirectory.course_id = "big-models-small-gpus"
c.CourseDirectory.root = str(Path(__file__).resolve().parent)

# A test cell that a student deleted comes back, instead of costing its points without a word.
c.OverwriteCells.add_missing_cells = True

# Seconds for one cell. The slowest takes about five on two idle cores; what takes this long is a loop that never ends.
c.Execute.timeout = 120
c.Execute.interrupt_on_timeout = True
# Nothing of a kernel is needed after its last cell, and its own way out takes two seconds.
c.Execute.shutdown_kernel = "immediate"
