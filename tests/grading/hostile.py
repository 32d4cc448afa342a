"""Cheats. Each is code that goes into a cell of its own, in front of everything, of a notebook whose static_bytes is
wrong; or code in place of an answer. The honest twin is the same notebook without it."""

#: name -> code of a first cell
FIRST_CELLS = {
    "writes-the-gradebook": """
import os, sqlite3
for folder, _, files in os.walk("/"):
    if folder.startswith(("/proc", "/usr", "/sys")):
        continue
    for name in files:
        if name.endswith(".db"):
            db = sqlite3.connect(os.path.join(folder, name))
            db.execute("update grade set auto_score = 50")
            db.commit()
""",
    "strips-calls-from-the-syntax-tree": """
import ast
class Strip(ast.NodeTransformer):
    def visit_Assert(self, node): return None
    def visit_Expr(self, node): return None if isinstance(node.value, ast.Call) else node
get_ipython().ast_transformers.append(Strip())
""",
    "strips-the-source": """
get_ipython().input_transformers_cleanup.append(
    lambda lines: [line for line in lines if "check_" not in line] or ["pass\\n"])
""",
    "patches-the-judge": """
from course_lib.exercises import judge, precision
judge.judge = precision.judge = lambda *a, **k: print("ok")
""",
    "patches-the-check": """
from course_lib.exercises import precision
precision.check_static = precision.check_verdict = precision.check_peak = lambda *a, **k: None
precision.check_recipes = precision.check_released = lambda *a, **k: None
""",
    "patches-same": """
from course_lib.exercises import judge
judge.same = lambda *a, **k: True
judge.refuse_stubs = lambda *a, **k: None
""",
    "a-course-lib-of-its-own": """
import os, sys
os.makedirs("/tmp/course_lib/exercises")
open("/tmp/course_lib/__init__.py", "w").close()
open("/tmp/course_lib/exercises/__init__.py", "w").close()
open("/tmp/course_lib/exercises/precision.py", "w").write("def __getattr__(name): return lambda *a, **k: None")
for name in [name for name in sys.modules if name.startswith("course_lib")]:
    del sys.modules[name]
sys.path.insert(0, "/tmp")
""",
    "a-fake-module": """
import sys, types
fake = types.ModuleType("precision")
fake.__getattr__ = lambda name: (lambda *a, **k: None)
import course_lib.exercises
sys.modules["course_lib.exercises.precision"] = course_lib.exercises.precision = fake
""",
    "an-import-of-its-own": """
import builtins
real = builtins.__import__
class Yes:
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
builtins.__import__ = lambda name, *a, **k: Yes() if name.startswith("course_lib.ex") else real(name, *a, **k)
""",
    "patches-run-cell": """
from IPython.core.interactiveshell import InteractiveShell, ExecutionResult
real = InteractiveShell.run_cell
def run_cell(self, code, *a, **k):
    result = real(self, code, *a, **k)
    result.error_in_exec = result.error_before_exec = None
    return result
InteractiveShell.run_cell = run_cell
type(get_ipython()).run_cell = run_cell
""",
    "patches-the-kernel": """
from course_lib.grading import kernel
kernel._run = lambda *a, **k: {"seconds": 0.0, "outputs": [], "error": None}
""",
    "patches-json": """
import json
real = json.dumps
def dumps(value, *a, **k):
    if isinstance(value, dict) and "error" in value:
        value = {**value, "error": None}
    return real(value, *a, **k)
json.dumps = dumps
""",
    "patches-the-answering": """
from course_lib.grading import answering
from course_lib.grading.wire import pack
answer = {"value": pack({"weights": 4000, "gradients": 4000, "optimizer": 8000})}
answering.Answering.__call__ = lambda self, message: answer
""",
    "forges-observed-data": """
from course_lib.exercises import judge
judge.observe = lambda *a, **k: {"weights": 4000, "gradients": 4000, "optimizer": 8000}
""",
    "forges-frames-on-the-line": """
import json, os, stat, struct
frame = json.dumps({"seconds": 0.0, "outputs": [], "error": None}).encode()
for fd in os.listdir("/proc/self/fd"):
    try:
        if stat.S_ISSOCK(os.fstat(int(fd)).st_mode):
            for _ in range(60):
                os.write(int(fd), struct.pack("!I", len(frame)) + frame)
    except OSError:
        pass
""",
    "equal-to-everything": """
class Yes(dict):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 1
""",
    "patches-torch": """
import torch
torch.allclose = torch.equal = lambda *a, **k: True
""",
    "patches-isclose": """
import math
math.isclose = lambda *a, **k: True
""",
    "patches-isinstance": """
import builtins
builtins.isinstance = lambda *a: True
""",
    "patches-exceptions": """
from course_lib.exercises import judge
class Nothing(Exception):
    def __init__(self, *a, **k): raise SystemExit
judge.Broken = Nothing
""",
    "detects-the-grader": """
import os, sys
if os.environ.get("NBGRADER_EXECUTION"):
    from course_lib.exercises import precision
    for name in dir(precision):
        if name.startswith("check"):
            setattr(precision, name, lambda *a, **k: None)
""",
    "replays-history": """
for code in list(In):
    if "check_" in code:
        print(code)
Out.clear()
""",
    "a-thread-that-patches-later": """
import threading, time
def later():
    while True:
        from course_lib.exercises import precision
        precision.check_static = lambda *a, **k: None
        time.sleep(0.001)
threading.Thread(target=later, daemon=True).start()
""",
    "a-hook-after-each-cell": """
def after(result):
    result.error_in_exec = None
get_ipython().events.register("post_run_cell", after)
""",
    "a-custom-exception-handler": """
get_ipython().set_custom_exc((BaseException,), lambda shell, *a, **k: None)
""",
    "exits-at-once": "import os; os._exit(0)",
    "exits-politely": "import sys; sys.exit(0)",
    "kills-what-it-can": """
import os, signal
for pid in [os.getppid(), 1, -1]:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        print(error)
""",
    "ignores-interrupts": """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
end = time.time() + 1
while time.time() < end:
    try:
        time.sleep(0.1)
    except BaseException:
        pass
""",
    "a-child-that-stays": """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    import time; time.sleep(3600)
""",
    "prints-source-later": """
import sys
seen = []
def trace(frame, event, arg):
    if "HIDDEN" in str(frame.f_code.co_consts) or "some_sizes" in str(frame.f_code.co_names):
        seen.append(frame.f_code)
sys.setprofile(trace)
import atexit
atexit.register(lambda: print(seen))
""",
    "looks-for-hidden-tests": """
import gc, os
for folder in ("/work", "/course", "/root", "/home", "/tmp", "/dev/shm", "/proc/1"):
    for top, _, files in os.walk(folder):
        for name in files:
            if name.endswith((".ipynb", ".db", "ex1_precision.py")):
                print("FOUND", top, name)
print([each for each in gc.get_objects() if isinstance(each, str) and "some_sizes(" in each][:3])
""",
}

#: name -> code in place of static_bytes
ANSWERS = {
    "hard-coded-outputs": """
def static_bytes(n_params, recipe):
    known = {"fp32": 4, "amp-bf16": 4, "bf16": 2}
    if recipe not in known:
        raise ValueError
    k = known[recipe] * 1000
    return {"weights": k, "gradients": k, "optimizer": 2 * k}
""",
    "reads-the-right-values-from-frames": """
import sys
def static_bytes(n_params, recipe):
    frame = sys._getframe()
    while frame:
        right = frame.f_locals.get("right")
        fact = frame.f_locals.get("fact")
        if isinstance(right, dict) and fact in right:
            return right[fact]
        frame = frame.f_back
    raise ValueError
""",
    "an-object-equal-to-everything": """
class Yes(dict):
    def __init__(self): super().__init__(weights=1, gradients=1, optimizer=1)
    def __eq__(self, other): return True
    def __getitem__(self, key): return Any()
    def keys(self): return {"weights": 1, "gradients": 1, "optimizer": 1}.keys()
class Any(int):
    def __eq__(self, other): return True
    def __hash__(self): return 1
    def __bool__(self): return True
def static_bytes(n_params, recipe):
    if recipe == "int3": raise ValueError
    return Yes()
""",
    "a-pickle-that-runs": """
import os
class Bomb:
    def __reduce__(self): return (os.system, ("touch /tmp/ran",))
def static_bytes(n_params, recipe):
    return Bomb()
""",
    "dies-when-asked": """
import os
def static_bytes(n_params, recipe):
    os._exit(0)
""",
    "returns-a-gigabyte": """
def static_bytes(n_params, recipe):
    return {"weights": "x" * 2**30}
""",
    "nests-without-end": """
def static_bytes(n_params, recipe):
    value = []
    for _ in range(100000):
        value = [value]
    return value
""",
    "patches-when-called": """
def static_bytes(n_params, recipe):
    from course_lib.exercises import judge, precision
    judge.same = lambda *a, **k: True
    judge.refuse_stubs = lambda *a, **k: None
    return {}
""",
    "the-solution-of-the-tests": """
from course_lib.exercises import precision
def static_bytes(n_params, recipe):
    if recipe not in precision.BYTES:
        raise ValueError
    return {name: each * n_params for name, each in zip(precision.ACCOUNTS, precision.BYTES[recipe])}
""",
}

#: What is changed in the notebook itself.
EDITS = {
    "more-points": lambda cell: cell["metadata"]["nbgrader"].update(points=1000),
    "tests-that-pass": lambda cell: cell.update(source="pass"),
    "tests-become-text": lambda cell: cell.update(cell_type="markdown"),
    "tests-become-answers": lambda cell: cell["metadata"]["nbgrader"].update(solution=True, grade=False, locked=False),
    "tests-of-another-name": lambda cell: cell["metadata"]["nbgrader"].update(grade_id="explain"),
    "outputs-that-claim": lambda cell: cell.update(
        outputs=[{"output_type": "stream", "name": "stdout", "text": "✓ all right"}]
    ),
}
