"""Tables of operations: what a row asks of a device, by hand, and what is wrong with a bad one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lolat.devices import BINARY, UNARY, columns_of, read_operations
from lolat.errors import InputError
from lolat.graph.counts import count
from lolat.graph.work import CLASSES, work_of

HEADER = (
    "op,batch,m,n,k,rows,width,in_channels,out_channels,kernel,input_size,stride,padding,latency_ms"
)
GOOD = {
    "linear": "linear,4,128,256,512,,,,,,,,,0.5",
    "bmm": "bmm,6,128,64,32,,,,,,,,,0.1",
    "conv": "conv,2,,,,,,16,32,3,28,2,1,0.2",
    "add": "add,,,,,10,100,,,,,,,0.03",
    "gelu": "gelu,,,,,10,100,,,,,,,0.03",
    "softmax": "softmax,,,,,10,100,,,,,,,0.03",
}


def table(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "ops.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_the_work_of_each_by_hand(tmp_path: Path) -> None:
    found = {o.name: o for o in read_operations(table(tmp_path, *GOOD.values()))}
    work = {name: work_of(o.graph, o.batch_size) for name, o in found.items()}
    assert [float(work["linear"].rows[0]), float(work["linear"].columns[0])] == [512, 512]
    assert float(work["linear"].macs[0]) == 4 * 128 * 256 * 512
    # input, output, kernel and bias
    assert float(work["linear"].bytes[0]) == 4 * (4 * 128 * (256 + 512) + 256 * 512 + 512)
    assert float(work["bmm"].macs[0]) == 6 * 128 * 64 * 32
    assert float(work["bmm"].bytes[0]) == 4 * 6 * (128 * 64 + 64 * 32 + 128 * 32)
    assert float(work["conv"].macs[0]) == 2 * 14 * 14 * 32 * 9 * 16
    assert float(work["conv"].bytes[0]) == 4 * (2 * (16 * 28 * 28 + 32 * 14 * 14) + 9 * 16 * 32)
    assert float(work["conv"].squares[0]) == 0.0  # of stride 2
    assert float(work["add"].bytes[0]) == 4 * 3 * 1000
    assert float(work["gelu"].bytes[0]) == 4 * 2 * 1000
    kinds = {name: CLASSES[int(w.kind[0])] for name, w in work.items()}
    assert kinds == {
        "linear": "dense", "bmm": "batched", "conv": "convolution", "add": "elements",
        "gelu": "curves", "softmax": "softmax",
    }  # fmt: skip


def test_winograds_work_by_hand(tmp_path: Path) -> None:
    (found,) = read_operations(table(tmp_path, "conv,8,,,,,,64,96,3,14,1,1,0.1"))
    work = work_of(found.graph, found.batch_size)
    assert float(work.squares[0]) == 8 * 4 * 4  # 14 outputs in squares of 4, either way
    other = work.winograd()
    assert [float(n[0]) for n in (other.number, other.rows, other.columns, other.depth)] == [
        36, 128, 96, 64,
    ]  # fmt: skip
    # once as they are, and inputs, outputs and kernels transformed, written and read
    assert float((other.bytes - work.bytes)[0]) == 4 * 2 * 36 * (128 * (64 + 96) + 64 * 96)


@pytest.mark.parametrize("name", [*BINARY, *UNARY])
def test_every_name_is_counted_as_a_known_operation(tmp_path: Path, name: str) -> None:
    (found,) = read_operations(table(tmp_path, f"{name},,,,,8,16,,,,,,,0.03"))
    assert count(found.graph).warnings == ()


def test_a_packed_table_with_capitals_and_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv.gz"
    text = "\ufeffOperation,Rows,Width,Latency_ms\nadd,10,100,0.03\n"
    path.write_bytes(gzip.compress(text.encode()))
    assert columns_of(path) == ["operation", "rows", "width", "latency_ms"]
    assert [o.latency_ms for o in read_operations(path)] == [0.03]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pool,,,,,1,2,,,,,,,0.1", "op is 'pool'; expected one of linear, bmm, conv"),
        ("add,,,,,1.5,2,,,,,,,0.1", "line 2: rows is '1.5'; expected a whole number"),
        ("add,,,,,0,2,,,,,,,0.1", "rows is '0'"),
        ("add,,,,,,2,,,,,,,0.1", "rows is empty"),
        ("add,,,,,1,2,,,,,,,fast", "latency_ms is 'fast'; expected milliseconds above 0"),
        ("add,,,,,1,2,,,,,,,-1", "latency_ms is '-1'"),
        ("add,,,,,1,2,,,,,,,0", "latency_ms is '0'"),
        ("add,,,,,1,2,,,,,,,nan", "latency_ms is 'nan'"),
        ("add,,,,,1,2,,,,,,,3e-8", "are these seconds, or nanoseconds?"),
        ("add,,,,,1,2,,,,,,,0.1,7", "line 2: 15 cells; expected 14"),
        ("add,,,,,1,2,0.1", "line 2: 8 cells; expected 14"),
        ('add,,,,,"1,2,,,,,,,0.1', "unexpected end of data; expected the columns op"),
    ],
)
def test_a_bad_row_is_one_clear_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read_operations(table(tmp_path, line))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_column_that_an_operation_needs(tmp_path: Path) -> None:
    path = table(tmp_path, "linear,1,2,0.1", header="op,batch,m,latency_ms")
    with pytest.raises(InputError, match="linear needs the column n"):
        read_operations(path)


def test_other_tables(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no table of operations; expected the columns op"):
        read_operations(table(tmp_path, "1,2", header="acts,latency_ms"))
    with pytest.raises(InputError, match="has no rows"):
        read_operations(table(tmp_path))
