"""Tables in memory, such as DataFrames: written to Parquet files, which are read as all others; columns returned.

A table is a pandas, Polars or Arrow table, any other object with the Arrow or the dataframe interchange protocol, or a
mapping of columns' names to arrays. None of these packages is required.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError, shown

UNNAMED = "__index_level_"  # with which the columns of an index without names begin
NUMBER = re.compile(r"\s*[+-]?\d+([.,]\d+)?(e[+-]?\d+)?\s*", re.IGNORECASE)
TICKS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # of durations, in a second
GROUPED = re.compile(r"\s*[+-]?[1-9]\d{0,2}[.,]\d{3}\s*")  # a mark of decimals or of thousands


def is_frame(value: object) -> bool:
    """Return whether an object is a table.

    >>> is_frame({"x": [1, 2]}), is_frame(np.zeros((2, 3))), is_frame("plant.csv")
    (True, False, False)
    """
    return isinstance(value, Mapping) or hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__")


def write(frame: Any, path: Path) -> None:
    """Write a table to a Parquet file; of a pandas index only levels with a name become columns.

    Raises:
        SettingError: the object is no table, has two columns of one name, columns of different lengths, or values of
            mixed types in a column.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = _arrow(frame)
        twice = next((name for name in table.column_names if table.column_names.count(name) > 1), None)
        if twice is not None:
            raise SettingError(f"the table has two columns '{twice}'. Rename one of them.", key="repeated-column")
        parquet.write_table(_in_seconds(_of_one_mark(table)), path, store_schema=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise SettingError(
            f"the table cannot be read as columns of equal length with values of one type each: {error}",
            key="not-a-table",
        ) from error


def _arrow(frame: Any) -> Any:
    import pyarrow as pa

    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, Mapping):
        return _of_columns([(str(name), column) for name, column in frame.items()])
    if hasattr(frame, "iloc"):
        return _of_columns(_of_pandas(frame))
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    if hasattr(frame, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        return from_dataframe(frame)
    raise SettingError(
        f"a {type(frame).__name__} is no table: give a pandas, Polars or Arrow table, or a dictionary of arrays.",
        key="not-a-table",
    )


def _of_pandas(frame: Any) -> list[tuple[str, Any]]:
    """Return the columns of a DataFrame, and the levels of its index with a name, as its attributes give them.

    Raises:
        SettingError: the columns have names of several levels.
    """
    levels = frame.columns.nlevels
    if levels > 1:
        raise SettingError(
            f"the table's columns have names of {levels} levels, such as {frame.columns[0]}. Give them one: "
            'table.columns = [" ".join(map(str, name)) for name in table.columns].',
            key="not-a-table",
        )
    columns = [(str(name), frame.iloc[:, place]) for place, name in enumerate(frame.columns)]
    index = frame.index
    if type(index).__name__ == "RangeIndex":  # it counts the rows
        return columns
    named = [(str(name), index.get_level_values(level)) for level, name in enumerate(index.names) if name is not None]
    return columns + [(name, values.to_series()) for name, values in named]


def _of_columns(columns: Sequence[tuple[str, Any]]) -> Any:
    """Return an Arrow table of columns by name.

    Raises:
        SettingError: two columns have one name, or one is no column of values of one type.
    """
    import pyarrow as pa

    names = [name for name, _ in columns]
    arrays = []
    for name, column in columns:
        try:
            arrays.append(_column(column))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise SettingError(
                f"the table, column {shown(name)}: no column of numbers, times or texts ({error}). Leave it out, or "
                f"convert it: table[{name!r}] = list(map(str, table[{name!r}])).",
                key="not-a-table",
            ) from error
    return pa.Table.from_arrays(arrays, names=names)


def _column(column: Any) -> Any:
    """Return a column as an Arrow array; without gaps, and a period as its beginning."""
    import pyarrow as pa

    if hasattr(column, "iloc"):  # a Series
        kind = type(column.dtype).__name__
        if kind == "PeriodDtype":
            column = column.dt.to_timestamp()
        if kind == "SparseDtype":
            column = column.sparse.to_dense()
        array = pa.array(column)
    else:
        values = np.asarray(column)
        if values.dtype.kind in "SU" and not hasattr(column, "dtype"):  # NumPy has made texts of all cells
            values = np.array(column, object)
        array = pa.array(values, from_pandas=values.dtype == object)  # None, NaN and NaT among objects are no values
    inner = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if isinstance(inner, pa.BaseExtensionType):
        raise TypeError(f"of the type {inner.extension_name}")
    return array


def _in_seconds(table: Any) -> Any:
    """Return a table whose durations are numbers of seconds: a Parquet file has no durations."""
    import pyarrow as pa
    import pyarrow.compute

    for place, field in enumerate(table.schema):
        if pa.types.is_duration(field.type):
            ticks = pyarrow.compute.cast(table.column(place), pa.int64())
            seconds = pyarrow.compute.divide(pyarrow.compute.cast(ticks, pa.float64()), TICKS[field.type.unit])
            table = table.set_column(place, field.name, seconds)
    return table


def _of_one_mark(table: Any) -> Any:
    """Return a table whose texts of numbers have one decimal mark: with two, those of columns become numbers.

    Files have one decimal mark, :attr:`Reading.decimal`; columns of a table in memory may be of several files.
    """
    import pyarrow as pa

    marks = dict[str, str]()
    kinds = (pa.types.is_string, pa.types.is_large_string)
    for name in table.column_names:
        if any(is_kind(table.column(name).type) for is_kind in kinds):
            marks[name] = _decimal([cell for cell in table.column(name).unique().to_pylist() if cell])
    if not {",", "."} <= {*marks.values()}:
        return table
    for name, mark in marks.items():
        if mark:
            cells = [float(cell.replace(",", ".")) if cell else None for cell in table.column(name).to_pylist()]
            table = table.set_column(table.column_names.index(name), name, pa.array(cells, pa.float64()))
    return table


def _decimal(cells: Sequence[str]) -> str:
    """Return the decimal mark of texts; "" if one is no number, or nothing tells decimals from thousands.

    >>> _decimal(["20,13", "7"]), _decimal(["0.987"]), _decimal(["1,250", "2,000"]), _decimal(["20,13", "n/a"])
    (',', '.', '', '')
    """
    marks = {match[1][0] for cell in cells if (match := NUMBER.fullmatch(cell)) and match[1]}
    if len(marks) != 1 or not all(map(NUMBER.fullmatch, cells)):
        return ""
    told = any(match[1] and not GROUPED.fullmatch(cell) for cell in cells if (match := NUMBER.fullmatch(cell)))
    return marks.pop() if told else ""


def columns_like(frame: Any, columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return columns as a table of the frame's kind with its index; a dictionary of arrays for other kinds."""
    pandas = sys.modules.get("pandas")
    polars = sys.modules.get("polars")
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        return pandas.DataFrame({name: list(values) for name, values in columns.items()}, index=frame.index)
    if polars is not None and isinstance(frame, polars.DataFrame):
        return polars.DataFrame({name: list(values) for name, values in columns.items()})
    return {name: np.array(list(values)) for name, values in columns.items()}
