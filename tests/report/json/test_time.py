"""Times through report.json and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.report.runs import FITTING, run_of
from tests.report.timed import FAST, PROFILE, TIME, timed_rank, timed_run
from windtunnel.errors import CorruptFile
from windtunnel.report.json.run import read_report, report_text, write_report
from windtunnel.report.results.run import same_as


def through_a_file(result, tmp_path, change=lambda document: None):
    path = tmp_path / "report.json"
    document = json.loads(report_text(result))
    change(document)
    path.write_text(json.dumps(document))
    return read_report(path)


def test_times_come_back_as_they_were(tmp_path):
    result = timed_run()
    write_report(tmp_path / "report.json", result)
    found = read_report(tmp_path / "report.json")
    assert found.time == result.time
    assert [rank.time for rank in found.ranks] == [rank.time for rank in result.ranks]
    assert [rank.step_time_us for rank in found.ranks] == [1e6, 1e6]


def test_a_run_without_times_has_none(tmp_path):
    found = through_a_file(run_of(FITTING), tmp_path)
    assert found.time is None
    assert found.ranks[0].time is None
    assert json.loads(report_text(run_of(FITTING)))["time"] is None


def test_a_report_from_before_there_were_times_is_read(tmp_path):
    def older(document):
        del document["time"]
        for rank in document["ranks"]:
            del rank["time"]

    found = through_a_file(timed_run(), tmp_path, older)
    assert (found.time, found.ranks[0].time) == (None, None)


def test_fields_of_later_versions_are_ignored(tmp_path):
    def later(document):
        document["time"]["watts"] = 700
        for rank in document["ranks"]:
            time = rank["time"]
            for part in (time, time["time"], time["profile"], *time["profile"]["operators"]):
                part["watts"] = 700

    found = through_a_file(timed_run(), tmp_path, later)
    assert found.time == TIME
    assert [rank.time for rank in found.ranks] == [rank.time for rank in timed_run().ranks]


def test_a_part_that_is_missing_is_a_damaged_file(tmp_path):
    def damage(document):
        del document["ranks"][0]["time"]["profile"]["operators"]

    with pytest.raises(CorruptFile, match="it has no field 'operators'"):
        through_a_file(timed_run(), tmp_path, damage)


def test_shares_of_the_peak_stand_in_the_file():
    time = json.loads(report_text(timed_run()))["time"]
    assert time["model_flops_utilisation"] == 0.5
    assert time["hardware_flops_utilisation"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("without", [{"model_flops": 0}, {"peak_flops": 0.0}, {"step_seconds": 0.0}])
def test_there_is_no_share_of_what_is_not_known(without):
    assert replace(TIME, **without).model_flops_utilisation is None


def test_of_very_many_modules_the_longest_stand_in_the_file(tmp_path):
    many = {f"layers.{i}": 1.0 - i / 1000 for i in range(600)}
    run = timed_run(timed_rank(FAST, replace(PROFILE, by_module=many)))
    kept = through_a_file(run, tmp_path).ranks[0].time.profile.by_module
    assert list(kept.items()) == list(many.items())[:400]


def test_a_rank_shown_by_another_has_its_step_time_only(tmp_path):
    rank = timed_rank(FAST)
    found = through_a_file(timed_run(rank, same_as(1, rank)), tmp_path)
    assert (found.ranks[1].step_time_us, found.ranks[1].time) == (1e6, None)
