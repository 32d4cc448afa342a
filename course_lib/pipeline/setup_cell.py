"""The code of every notebook's first code cell, kept in one place.

It must run where course_lib is not there yet, so it is a literal and not a function. Once it has
found or installed the course, :mod:`course_lib.notebook_setup` does the rest.
"""

import json

TEMPLATE = '''\
LANGUAGE = {language}

import importlib.util, os, subprocess, sys
from glob import glob

if not importlib.util.find_spec("course_lib"):  # as on Colab: install the course alone
    wheels = sorted(glob("big_models_small_gpus-*.whl"), key=os.path.getmtime)
    source = os.environ.get("COURSE_SOURCE") or (wheels or [{source}])[-1]
    if source:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, source], check=True)
    elif os.path.isdir("../../../course_lib"):  # inside a checkout: use it as it is
        sys.path.insert(0, os.path.abspath("../../.."))
    else:
        raise RuntimeError("Lay the course's .whl file beside this notebook / "
                           "请把课程的 .whl 文件放在本 notebook 旁边")

from course_lib.notebook_setup import set_up

set_up(LANGUAGE)'''


def setup_code(language: str, source: str) -> str:
    """The set-up cell of one edition; the editions differ in the literal of ``LANGUAGE`` alone.

    Args:
        language: ``en`` or ``zh``.
        source: what pip installs where COURSE_SOURCE is not set and no wheel lies beside the notebook; may be empty.
    """
    return TEMPLATE.format(language=json.dumps(language), source=json.dumps(source))
