"""Times in seconds, milliseconds, finer, decimal or as dates all become the same whole seconds."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pytest

from melon.data.files import load_stream
from melon.data.prepare import PreparationReport, prepare
from melon.errors import DataError, SettingsError

SECOND = 1_546_691_624  # 2019-01-05 12:33:44


def times_of(tmp_path: Path, times: Iterable[object], **options: object) -> tuple[list[int], PreparationReport]:
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


DAY = 1_735_603_200  # 2024-12-31


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (["31.12.2024", "30.12.2024"], [DAY - 86_400, DAY]),
        (["31.12.24"], [DAY]),
        (["31.12.2024 14:05"], [DAY + 50_700]),
        (["31.12.2024 14:05:07"], [DAY + 50_707]),
        (["1.1.2025"], [DAY + 86_400]),
        (["12/31/2024", "01/01/2025"], [DAY, DAY + 86_400]),
        (["31/12/2024 14:05", "01/01/2025 00:00"], [DAY + 50_700, DAY + 86_400]),
        (["12/31/2024 2:05 PM"], [DAY + 50_700]),
        (["31-12-2024"], [DAY]),
        (["2024/12/31 14:05"], [DAY + 50_700]),
    ],
)
def test_dates_of_other_countries(times: list[object], expected: list[int], tmp_path: Path) -> None:
    found, report = times_of(tmp_path, times)
    assert found == expected
    assert report.time_unit == "date"
    assert any("times are dates, read as %" in note and "(guessed)" in note for note in report.notes)


def test_days_and_months_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    ways = r"day first \(%d/%m/%Y\).*month first \(%m/%d/%Y\).*--time-format '%d/%m/%Y' or --time-format '%m/%d/%Y'"
    with pytest.raises(DataError, match=rf"'03/04/2024'.*{ways}"):
        times_of(tmp_path, ["03/04/2024", "05/06/2024"])
    with pytest.raises(DataError, match=r"--time-format '%d/%m/%Y %H:%M' or"):
        times_of(tmp_path, ["03/04/2024 10:00"])
    with pytest.raises(DataError, match="day first in 1 rows and the month first in 1 rows"):
        times_of(tmp_path, ["13/04/2024", "04/13/2024"])
    assert times_of(tmp_path, ["03/04/2024"], time_format="%d/%m/%Y")[0] == [1_712_102_400]
    assert times_of(tmp_path, ["03/04/2024"], time_format="%m/%d/%Y")[0] == [1_709_510_400]


def test_one_date_anywhere_settles_the_order(tmp_path: Path) -> None:
    found, report = times_of(tmp_path, [*["03/04/2024"] * 3_000, "13/04/2024"])
    assert (found[0], len(found)) == (1_712_102_400, 3_001)
    assert any("%d/%m/%Y (guessed)" in note for note in report.notes)


def test_a_format_that_is_said_is_the_only_one(tmp_path: Path) -> None:
    found, report = times_of(tmp_path, ["20241231", "20250101", "2025-01-02"], time_format="%Y%m%d")
    assert found == [DAY, DAY + 86_400]
    assert [(bad.reason, bad.count) for bad in report.bad] == [("unparsable time", 1)]
    with pytest.raises(DataError, match=r"no good row.*--time-format"):
        times_of(tmp_path, ["Tuesday", "Wednesday"])


def test_dates_written_as_one_number_do_not_land_in_1970(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"20241231 can be a date.*--time-format %Y%m%d or --time-unit s"):
        times_of(tmp_path, [20241231, 20250101])
    pl.DataFrame({"user": [1], "item": [1], "time": [20241231]}).write_parquet(tmp_path / "raw.parquet")
    prepare(tmp_path / "raw.parquet", out=tmp_path / "s.parquet", min_interactions=1, time_format="%Y%m%d")
    assert load_stream(tmp_path / "s.parquet").times.tolist() == [DAY]


def test_counters_are_said_to_be_seconds_with_a_doubt(tmp_path: Path) -> None:
    _, report = times_of(tmp_path, range(100))
    assert any("1970-01-01 (if these are not counters" in note for note in report.notes)


@pytest.mark.parametrize("wild", ["1e300", str(2**63), str(2**64), "9" * 40])
@pytest.mark.parametrize("usual", [SECOND, SECOND * 10**9])
def test_numbers_that_are_no_moments(wild: str, usual: int, tmp_path: Path) -> None:
    found, report = times_of(tmp_path, [usual, usual, usual, wild])
    assert found == [SECOND] * 3
    assert [bad.reason for bad in report.bad] == ["time after the year 9999"]


def test_large_unsigned_numbers_of_parquet(tmp_path: Path) -> None:
    times = pl.Series([SECOND, SECOND, 2**63 + 5], dtype=pl.UInt64)
    pl.DataFrame({"user": [1, 2, 3], "item": [1, 1, 1], "time": times}).write_parquet(tmp_path / "raw.parquet")
    report = prepare(tmp_path / "raw.parquet", out=tmp_path / "s.parquet", min_interactions=1)
    assert [(bad.reason, bad.count) for bad in report.bad] == [("time after the year 9999", 1)]
