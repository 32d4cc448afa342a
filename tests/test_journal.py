"""Predictions: the first guess stays, late ones are marked, nothing is lost."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

from course_lib.accounts import Moment
from course_lib.errors import CourseError
from course_lib.journal import calibration, predict, predictions, settle
from course_lib.reader_log import ReaderLog, state_dir

matplotlib.use("agg")
Capture = pytest.CaptureFixture[str]


def test_a_guess_is_kept_for_the_next_kernel(state_folder: Path) -> None:
    code = "from course_lib.journal import predict; predict('weights', 28, unit='GB')"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)  # a kernel that has ended
    kept = predictions()["weights"]
    assert (kept.value, kept.unit, kept.late, kept.measured) == (28, "GB", False, None)
    assert kept.at.startswith("20")
    assert kept.at.endswith("+00:00")


def test_the_first_guess_stays_unless_it_is_replaced_in_words(capsys: Capture) -> None:
    predict("weights", 28, unit="GB")
    predict("weights", 28, unit="GB")  # as "run all" does
    predict("weights", 14, unit="GB")
    assert predictions()["weights"].value == 28
    said = capsys.readouterr().out
    assert "You predicted 28 GB on" in said
    assert "predict('weights', 14, replace=True)" in said
    predict("weights", 14, replace=True)
    kept = predictions()["weights"]
    assert (kept.value, kept.unit, kept.late) == (14, "GB", False)


def test_a_guess_after_the_measurement_is_late(capsys: Capture) -> None:
    settle("peak", 30.0, "GiB")
    predict("peak", 30, "GiB")
    predict("in-time", 10)
    settle("in-time", 20)
    predict("in-time", 20)  # not replaced: the guess in time stays
    predict("replaced", 10)
    settle("replaced", 20)
    predict("replaced", 20, replace=True)
    found = predictions()
    assert {name: found[name].late for name in found} == {"peak": True, "in-time": False, "replaced": True}
    assert found["in-time"].ratio == 0.5
    assert "late" in capsys.readouterr().out


def test_settling_says_both_and_how_far_off(capsys: Capture) -> None:
    for guess, word in ((105, "close"), (240, "too much"), (40, "too little")):
        predict(f"g{guess}", guess, unit="GB")
        capsys.readouterr()
        settle(f"g{guess}", 100)
        lines = capsys.readouterr().out.splitlines()
        assert lines[:2] == [f"predicted  {guess} GB", "measured   100 GB"]
        assert f"{guess / 100:.2f}" in lines[2]
        assert word in lines[2]
    settle("nobody-guessed", 3)
    assert "You made no prediction" in capsys.readouterr().out


def test_words_are_guesses_too(capsys: Capture) -> None:
    predict("moment", "backward")
    settle("moment", Moment.OPTIMIZER_STEP)
    assert "Not this time" in capsys.readouterr().out
    predict("right", Moment.BACKWARD)
    settle("right", "backward")
    assert "Right." in capsys.readouterr().out
    assert predictions()["moment"].ratio is None


def test_scalars_of_other_libraries_are_numbers() -> None:
    for number, value in enumerate((np.float32(2.5), np.int64(2), torch.tensor(2.5), torch.tensor([2]), np.array(2))):
        predict(f"p{number}", value)
    assert [each.value for each in predictions().values()] == [2.5, 2, 2.5, 2, 2]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, 2], {}, object(), True, 1j, torch.zeros(3)])
def test_what_is_no_guess_is_refused(value: object) -> None:
    with pytest.raises(CourseError, match="^weights: got "):
        predict("weights", value)
    assert predictions() == {}


def test_dots_are_no_guess_yet(capsys: Capture) -> None:
    predict("weights", ...)
    predict("weights", None)
    assert predictions() == {}
    assert capsys.readouterr().out.count("No guess yet") == 2
    predict("weights", 28)
    predict("weights", ...)
    assert "You predicted 28 on" in capsys.readouterr().out


def test_another_unit_is_refused() -> None:
    predict("weights", 28, unit="GB")
    with pytest.raises(CourseError, match="predicted in GB, measured in GiB"):
        settle("weights", 26, unit="GiB")


def test_a_damaged_file_costs_nothing_but_its_damage(state_folder: Path, capsys: Capture) -> None:
    predict("before", 1)
    path = state_folder / "predictions.jsonl"
    with open(path, "ab") as file:
        file.write(b'\n{"event": "predict", "name": "cut", "va')  # a record that was cut short
    predict("after", 2)
    with open(path, "ab") as file:
        file.write(b"\n\x00\xff\xfe garbage\n[1]\n17\nnull\n{\"at\": 3}")
    damaged = path.read_bytes()
    capsys.readouterr()
    assert list(predictions()) == ["before", "after"]
    said = capsys.readouterr().out
    assert "(lines: 6)" in said
    assert str(path) in said
    aside = (state_folder / "predictions.damaged.jsonl").read_bytes()
    assert aside == damaged
    assert list(predictions()) == ["before", "after"]
    assert capsys.readouterr().out == "", "it is said once"


@pytest.mark.parametrize("record", [{"name": 3, "value": 1}, {"name": "x"}, {"event": "settle", "value": 2}])
def test_records_that_make_no_sense_are_passed_over(record: dict[str, object]) -> None:
    ReaderLog("predictions").append(**record)
    predict("good", 1)
    assert list(predictions()) == ["good"]


def test_a_folder_that_takes_nothing_costs_only_the_keeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("COURSE_STATE_DIR", str(tmp_path / "a-file" / "below"))
    monkeypatch.setattr("course_lib.journal._log", ReaderLog("predictions"))
    predict("not-saved", 3)
    settle("not-saved", 4)
    assert "Not saved" in capsys.readouterr().out
    assert predictions()["not-saved"].ratio == 0.75


def test_many_notebooks_write_at_once(state_folder: Path) -> None:
    code = (
        "import sys; from course_lib.reader_log import ReaderLog\n"
        "for n in range(200): ReaderLog('predictions').append(name=f'{sys.argv[1]}-{n}', value=n, note='x' * 300)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(writer)]) for writer in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(ReaderLog("predictions").read()) == 800
    assert not (state_folder / "predictions.damaged.jsonl").exists()


def test_where_things_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert state_dir() == tmp_path / "state"
    monkeypatch.delenv("COURSE_STATE_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert state_dir() == tmp_path / "data" / "big-models-small-gpus"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert state_dir() == Path.home() / ".local" / "share" / "big-models-small-gpus"
    monkeypatch.setattr("course_lib.reader_log.DRIVE", tmp_path)
    (tmp_path / "big-models-small-gpus").mkdir()
    assert state_dir() == tmp_path / "big-models-small-gpus"


def test_the_chart_shows_each_settled_number_and_marks_late_ones() -> None:
    with pytest.raises(CourseError, match="no numeric prediction"):
        calibration()
    for name, guess, truth in (("a", 95, 100), ("b", 10, 40), ("word", "x", "y"), ("zero", 1, 0)):
        predict(name, guess)
        settle(name, truth)
    settle("c", 10)
    predict("c", 10)
    predict("open", 5)
    ax = calibration()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [float(dot.get_xdata()[0]) for dot in dots] == [0.95, 0.25, 1.0]  # type: ignore[index]
    assert [dot.get_markerfacecolor() for dot in dots][2] == "white"
    assert ax.get_title(loc="left") == "1 of 2 guesses within 10%"


def test_a_record_is_one_line_of_json(state_folder: Path) -> None:
    predict("weights", 28, unit="GB")
    lines = (state_folder / "predictions.jsonl").read_text(encoding="utf-8").split("\n")
    assert lines[0] == ""
    record = json.loads(lines[1])
    assert record.pop("at")
    assert record == {"event": "predict", "name": "weights", "value": 28, "unit": "GB"}
