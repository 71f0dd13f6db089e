"""Times in seconds, milliseconds, finer, decimal or as dates all become the same whole seconds."""

from pathlib import Path

import pytest

from melon.data.files import load_stream
from melon.data.prepare import PreparationReport, prepare
from melon.errors import SettingsError

SECOND = 1_546_691_624  # 2019-01-05 12:33:44


def times_of(tmp_path: Path, times: list[object], **options: object) -> tuple[list[int], PreparationReport]:
    raw = tmp_path / "raw.csv"
    raw.write_text("user,item,time\n" + "".join(f"{n},0,{time}\n" for n, time in enumerate(times)))
    report = prepare(raw, out=tmp_path / "s.parquet", min_interactions=1, **options)  # type: ignore[arg-type]
    log = load_stream(tmp_path / "s.parquet")
    return log.times.tolist(), report


@pytest.mark.parametrize(
    ("time", "unit"),
    [
        (SECOND, "s"),
        (SECOND * 10**3 + 17, "ms"),
        (SECOND * 10**6 + 17, "us"),
        (SECOND * 10**9 + 17, "ns"),
        (f"{SECOND}.25", "s"),
        (f"{SECOND}25.5e-2", "s"),
        (f"{SECOND}000.5", "ms"),
        ("2019-01-05 12:33:44", "date"),
        ("2019-01-05 12:33:44.25", "date"),
        ("2019-01-05T12:33:44", "date"),
        ("2019-01-05T12:33:44Z", "date"),
        ("2019-01-05T14:33:44.123456+02:00", "date"),
        (" 2019-01-05 12:33:44 ", "date"),
        (f" {SECOND} ", "s"),
    ],
)
def test_notations(time: object, unit: str, tmp_path: Path) -> None:
    found, report = times_of(tmp_path, [time])
    assert found == [SECOND]
    assert report.time_unit == unit
    assert any("times are" in note for note in report.notes)


def test_days(tmp_path: Path) -> None:
    assert times_of(tmp_path, ["1970-01-02", "1970-01-03"])[0] == [86_400, 172_800]


def test_mixed_dates(tmp_path: Path) -> None:
    found, report = times_of(
        tmp_path, ["1970-01-01 00:00:01", "1970-01-01 00:00:02", "1970-01-01T00:00:03Z", "1970-01-02"]
    )
    assert found == [1, 2, 3, 86_400]
    assert not report.bad


def test_milliseconds_order_the_events_of_one_second(tmp_path: Path) -> None:
    base = SECOND * 1000
    times_of(tmp_path, [base + 900, base + 100, base + 500, base + 100])
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == [1, 3, 2, 0]


def test_one_wild_value_does_not_change_the_unit(tmp_path: Path) -> None:
    found, report = times_of(tmp_path, [SECOND, SECOND + 1, SECOND * 1000])
    assert found == [SECOND, SECOND + 1]
    assert [each.reason for each in report.bad] == ["time after the year 9999"]
    assert report.time_unit == "s"


def test_a_fraction_late_in_the_file_still_orders(tmp_path: Path) -> None:
    found, _ = times_of(tmp_path, [*range(100, 3100), "3100.75", "3100.25"])
    assert found[-2:] == [3100, 3100]
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist()[-2:] == [3001, 3000]


def test_the_unit_can_be_said(tmp_path: Path) -> None:
    assert times_of(tmp_path, [5_000, 6_500], time_unit="ms")[0] == [5, 6]
    with pytest.raises(SettingsError, match=r"unknown time unit 'sec'.*ms"):
        times_of(tmp_path, [1], time_unit="sec")


def test_small_numbers_are_seconds(tmp_path: Path) -> None:
    found, report = times_of(tmp_path, [0, 1, 2])
    assert found == [0, 1, 2]
    assert report.time_unit == "s"


def test_files_of_different_units(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"user,item,time\n1,0,{SECOND * 1000 + 500}\n")
    (tmp_path / "b.csv").write_text(f"user,item,time\n2,0,{SECOND}\n3,0,{SECOND + 1}\n")
    prepare([tmp_path / "a.csv", tmp_path / "b.csv"], out=tmp_path / "s.parquet", min_interactions=1)
    log = load_stream(tmp_path / "s.parquet")
    assert log.user_ids.tolist() == [2, 1, 3]
    assert log.times.tolist() == [SECOND, SECOND, SECOND + 1]
