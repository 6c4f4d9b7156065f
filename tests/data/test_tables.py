"""Tables out of arrays, pandas, xarray and CSV files."""

import math
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danp_lib.data.points import PointSet
from danp_lib.data.tables import from_arrays, from_csv, from_labelled, read_columns, read_outputs

property_test = settings(deadline=None, max_examples=50, derandomize=True)
X = [0.0, 0.5, 2.0, 2.25]
Y = [1.0, math.nan, 3.0, 4.0]


def assert_is_the_example(table: PointSet, x: list[float] = X) -> None:
    """The four points above, of which the second is missing."""
    assert table.mask.tolist() == [[True, False, True, True]]
    real = table.compact()
    assert real.x.flatten().tolist() == pytest.approx([x[0], *x[2:]], abs=1e-9)
    assert real.y.flatten().tolist() == [1.0, 3.0, 4.0]
    assert real.x.dtype == real.y.dtype == torch.float64


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


class TestArrays:
    def test_what_is_missing_is_masked(self) -> None:
        assert_is_the_example(from_arrays(X, Y))
        assert_is_the_example(from_arrays(torch.tensor(X), np.ma.masked_invalid(Y)))

    @given(
        values=st.lists(
            st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), min_size=4, max_size=4),
            min_size=1,
            max_size=5,
        )
    )
    @property_test
    def test_nothing_is_imputed(self, values: list[list[float | None]]) -> None:
        known = [[value is not None for value in row] for row in values]
        y = np.array([[math.nan if v is None else v for v in row] for row in values])
        if np.sum(known) < 2:
            with pytest.raises(ValueError, match=r"^y .*2 values"):
                from_arrays(X, y)
            return
        table = from_arrays(X, y)
        assert table.mask.tolist() == known
        for row, expected in enumerate(values):
            real = table[row].compact()
            assert real.y.flatten().tolist() == [v for v in expected if v is not None]

    def test_dates_are_years(self) -> None:
        dates = np.array(["1970-01-01", "1970-01-02", "2000-01-01T12", "2010-07-01"], "M8[h]")
        x = from_arrays(dates, [1.0, 2.0, 3.0, 4.0]).x.flatten().tolist()
        day = 1 / 365.2425
        # 10,957 days and a half from 1970 to the noon of the first day of 2000.
        assert x[:3] == pytest.approx([1970.0, 1970.0 + day, 1970.0 + 10957.5 * day], abs=1e-12)
        assert x[3] == pytest.approx(2010.5, abs=0.01)

    def test_dates_of_the_standard_library_are_years(self) -> None:
        days = np.array(["2001-01-01", "2001-02-01T06"], "M8[h]")
        expected = from_arrays(days, [1.0, 2.0])
        naive = [datetime(2001, 1, 1), datetime(2001, 2, 1, 6)]
        zone = timezone(timedelta(hours=2))
        aware = [datetime(2001, 1, 1, 2, tzinfo=zone), datetime(2001, 2, 1, 6, tzinfo=UTC)]
        ways: list[Any] = [naive, aware, [date(2001, 1, 1), naive[1]]]
        for x in (*ways, np.array(list(days), object)):
            assert torch.equal(from_arrays(x, [1.0, 2.0]).x, expected.x)

    @pytest.mark.parametrize(
        ("x", "y", "says"),
        [
            ([0, 1, 1], [1, 2, 3], "^x .*1.0 after 1.0 at position 2"),
            ([0, 2, 1], [1, 2, 3], "^x .*1.0 after 2.0 at position 2"),
            ([0, math.nan, 2], [1, 2, 3], "^x .*nan at position 1"),
            (np.array(["1970", "NaT"], "M8[D]"), [1, 2], "^x .*NaT"),
            ([0, 1], [1, 2, 3], r"^x .*\(2,\) and \(3,\)"),
            (["a", "b"], [1, 2], "^x .*'a'"),
            (np.array([1, 2], "m8[D]"), [1, 2], r"^x .*timedelta64\[D\]"),
            ([timedelta(1), timedelta(2)], [1, 2], "^x .*timedelta"),
            ([date(2001, 1, 1), 2002], [1, 2], "^x .*object"),
            ([0, 1], ["a", "b"], "^y .*<U1"),
            ([0, 1], [[1, 2], [3]], "^y must hold numbers, got a ragged list"),
            ([0, 1], ["a sequence", "b"], "^y must hold numbers, got <U10"),
            ([0, 1], [1, 2 + 3j], "^y .*complex128"),
            ([0, 1 + 1j], [1, 2], "^x .*complex128"),
            ([0, 1], [1, math.inf], r"^y .*inf at position \[1\]"),
            ([0, 1, 2], [math.nan, 5, math.nan], "^y .*2 values.* 1"),
            ([], [], "^y .*2 values.* 0"),
        ],
    )
    def test_what_is_no_table_is_refused(self, x: Any, y: Any, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            from_arrays(x, y)


class TestLabelled:
    def test_pandas(self) -> None:
        series = pd.Series(Y, index=X)
        assert_is_the_example(from_labelled(series))
        assert_is_the_example(from_labelled(series.to_frame().T))
        assert_is_the_example(from_labelled(series.convert_dtypes()))
        table = from_labelled(pd.DataFrame([Y, X], columns=X))
        assert table.sizes.tolist() == [3, 4]
        assert table[1].y.flatten().tolist() == X
        by_column = pd.DataFrame({"time": X, "temperature": Y})
        with pytest.raises(ValueError, match=r"DataFrame.*\.T"):
            from_labelled(by_column)

    def test_pandas_dates_and_periods(self) -> None:
        days = pd.date_range("2001-01-01", periods=4, freq="MS")
        expected = from_arrays(days.to_numpy(), Y).x.flatten().tolist()
        assert expected[0] == pytest.approx(2001.0, abs=0.01)
        assert_is_the_example(from_labelled(pd.Series(Y, index=days)), expected)
        assert_is_the_example(from_labelled(pd.Series(Y, index=days.to_period("M"))), expected)
        zoned = days.tz_localize("UTC").tz_convert("Asia/Tokyo")
        assert_is_the_example(from_labelled(pd.Series(Y, index=zoned)), expected)
        assert_is_the_example(from_labelled(pd.Series(Y, index=days.date)), expected)
        with pytest.raises(ValueError, match=r"^x .*NaT at position 1"):
            from_labelled(pd.Series([1.0, 2.0], index=zoned[:1].append(pd.DatetimeIndex([None]))))
        with pytest.raises(ValueError, match=r"^x .*timedelta64"):
            from_labelled(pd.Series(Y, index=days - days[0]))

    def test_xarray(self) -> None:
        xr: Any = pytest.importorskip("xarray")
        series = xr.DataArray(Y, dims="time", coords={"time": X})
        assert_is_the_example(from_labelled(series))
        table = from_labelled(xr.DataArray([Y, X], dims=("year", "time"), coords={"time": X}))
        assert table.sizes.tolist() == [3, 4]
        days = np.array(["2001-01-01", "2001-02-01", "2001-03-01", "2001-04-01"], "M8[ns]")
        dated = xr.DataArray(Y, dims="time", coords={"time": days})
        assert_is_the_example(from_labelled(dated), from_arrays(days, Y).x.flatten().tolist())
        with pytest.raises(ValueError, match="dimension of data"):
            from_labelled(xr.DataArray(Y, dims="time"))

    def test_what_is_neither_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^data .*list"):
            from_labelled(Y)
        with pytest.raises(ValueError, match=r"^y "):
            from_labelled(pd.Series(["a", "b"], index=[0.0, 1.0]))
        with pytest.raises(ValueError, match=r"^x .*JAN"):
            from_labelled(pd.Series([1.0, 2.0], index=["JAN", "FEB"]))


class TestCsv:
    def test_numbers(self, tmp_path: Path) -> None:
        text = "day, co2, note\n0,1.0,a\n0.5,,b\n\n2.0, 3e0 ,c\n2.25,4,\n"
        assert_is_the_example(from_csv(write(tmp_path / "a.csv", text), x="day", y="co2"))

    @pytest.mark.parametrize("missing", ["", "NA", "nan", "NaN", "null", "NULL"])
    def test_ways_to_say_missing(self, tmp_path: Path, missing: str) -> None:
        text = f"x,y\n0,1\n0.5,{missing}\n2,3\n2.25,4\n"
        assert_is_the_example(from_csv(write(tmp_path / "a.csv", text)))

    def test_dates(self, tmp_path: Path) -> None:
        days = ["2001-01-01", "2001-02-01", "2001-03-01", "2001-04-01T12:00"]
        text = "x,y\n" + "\n".join(f"{d},{v}" for d, v in zip(days, Y, strict=True))
        expected = from_arrays(np.array(days, "M8[h]"), Y).x.flatten().tolist()
        assert_is_the_example(from_csv(write(tmp_path / "a.csv", text)), expected)

    @pytest.mark.filterwarnings("error")
    def test_times_with_a_zone_are_those_of_utc(self, tmp_path: Path) -> None:
        text = "x,y\n2001-01-01T00:00Z,1\n2001-01-01T03:00+02:00,2\n2001-01-01 02:00Z,3\n"
        hours = np.array(["2001-01-01T00", "2001-01-01T01", "2001-01-01T02"], "M8[h]")
        x = from_csv(write(tmp_path / "a.csv", text)).x
        assert torch.equal(x, from_arrays(hours, [1.0, 2.0, 3.0]).x)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "a.csv, line 1: .*'x'.*got ''"),
            ("\n\n", "a.csv, line 1: .*'x'.*got ''"),
            ("t,y\n0,1\n", "line 1: .*'x'"),
            ("X\n0\n", r"line 1: .*, got 'X'\.$"),
            (
                "x;y\n0;1\n",
                r"got 'x;y'\. Columns must be separated by commas; .* DataFrame\.$",
            ),
            ("x,y\n2001-01-01,1\n2001-01-02T00Z,2\n", "line 3: x .* time zone in every .*T00Z"),
            ("x,y\n2001-01-01 10:00:00+05,1\n2001-01-01 11:00:00,2\n", "line 3: x .* time zone in"),
            ("x,x,y\n0,0,1\n", "line 1: .*'x'"),
            ("x,y\n0,1\n1\n", "line 3: .*1"),
            ("x,y\n0,1\n1,high\n", "line 3: y .*'high'"),
            ("x,y\n0,1\n1,N/A\n", "line 3: y .*'N/A'"),
            ("x,y\n0,1\n1,2_5\n", "line 3: y .*'2_5'"),
            ('x,y\n0,1\n1,"2,5"\n', "line 3: y .*decimal point.*'2,5'"),
            ('x,y,note\n0,1,"two\nlines"\n\n1,high,\n', "line 5: y .*'high'"),
            ("x,y\n0,1\n1,2,3\n", "a.csv, line 3: 2 values .* got 3"),
            ("x,y\n0,1\n1,1e39\n", "line 3: y .*'1e39'"),
            ("x\ty\n0\t1\n", "line 1: .*'x'.*commas"),
            ("x,y\ntoday,1\nnow,2\n", "line 2: x .*'today'"),
            ("x,y\n2001-02-30,1\n", "line 2: x .*'2001-02-30'"),
            ("x,y\n2001-01-01T00:00 UTC,1\n", "line 2: x .*UTC'"),
            ("x,y\n10,1\n20,2\n2001-01-01,3\n", "line 4: x .*'2001-01-01'"),
            ("x,y\n0,1\n1,inf\n", "line 3: y .*'inf'"),
            ("x,y\n0,1\nsoon,2\n", "line 3: x .*'soon'"),
            ("x,y\n0,1\n,2\n", "line 3: x .*''"),
            ("x,y\n2001-01-01,1\nsoon,2\n", "line 3: x .*'soon'"),
            ("x,y\n1,1\n0,2\n", "a.csv: x .*0.0 after 1.0 at position 1"),
            ("x,y\n0,1\n1,NA\n", "a.csv: y .*2 values"),
            ("x,y\n0,1\n" + '"', "a.csv .*UTF-8"),
        ],
    )
    def test_a_wrong_file_is_refused(self, tmp_path: Path, text: str, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            from_csv(write(tmp_path / "a.csv", text))

    def test_what_pandas_reads_better_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_bytes("x,größe\n0,1\n".encode("latin-1"))
        with pytest.raises(
            ValueError,
            match=r"UTF-8: .* naming its encoding.* compressed, unpack it",
        ):
            from_csv(tmp_path / "a.csv", y="größe")
        frame = pd.DataFrame({"x;y": ["0;1"]})
        with pytest.raises(
            ValueError, match=r"'x' once, got \['x;y'\]\. Columns must be separated"
        ):
            read_columns(frame, ["x", "y"])
        indexed = pd.DataFrame({"x": [0.0], "y": [1.0]}).set_index("x")
        with pytest.raises(ValueError, match=r"'x' once, got \['y'\]\. That is the index; give"):
            read_columns(indexed, ["x", "y"])

    def test_one_column_for_both_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="columns must have different names, got x, x"):
            from_csv(write(tmp_path / "a.csv", "x,y\n0,1\n"), x="x", y="x")

    def test_a_column_that_may_be_missing(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.csv", "g,x,g\n1,2,3\n")
        assert list(read_columns(path, ["x"], optional="h")) == ["x"]
        with pytest.raises(ValueError, match="'g' once"):
            read_columns(path, ["x"], optional="g")
        assert list(read_columns(write(path, "g,x\n1,2\n"), ["x"], optional="g")) == ["x", "g"]

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"a\.csv"):
            from_csv(tmp_path / "a.csv")

    @given(st.lists(st.floats(-3e38, 3e38), min_size=2, max_size=20))
    @property_test
    def test_numbers_are_read_to_the_bit(self, values: list[float]) -> None:
        cells = pd.Series([repr(value) for value in values], dtype=object, name="y")
        assert read_outputs(cells).tolist() == values

    def test_pandas_is_needed_for_files_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        assert_is_the_example(from_arrays(X, Y))
        with pytest.raises(ModuleNotFoundError, match=r"danp_lib\[tables\]"):
            from_csv(write(tmp_path / "a.csv", "x,y\n0,1\n1,2\n"))
        loaded = "import sys, danp_lib.cli.main; sys.exit('pandas' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


def test_a_masked_input_is_refused() -> None:
    x = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
    with pytest.raises(ValueError, match="x must have no masked entry"):
        from_arrays(x, np.zeros(3))
