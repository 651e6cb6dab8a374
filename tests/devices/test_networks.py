"""A table of networks against a model that answers 10 ms a sample."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from lolat.devices.networks import compare_table, predictions, summary
from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.model import Model
from tests import synthetic

MODEL = Model(synthetic.document())
NETWORK = synthetic.network()


def opened(spec: str, size: Any) -> Graph:
    if spec == "bad":
        raise NetworkError("no network 'bad'")
    return NETWORK


def table(folder: Path, text: str) -> Path:
    path = folder / "networks.csv"
    path.write_text(text)
    return path


def test_the_rows_and_their_predictions(tmp_path: Path) -> None:
    one, four = (MODEL.predict(NETWORK, n).latency_ms for n in (1, 4))
    path = table(
        tmp_path,
        f"network,batch_size,latency_ms,note\na,1,{one / 1.2},x\nb,4,{four},y\nbad,1,3,z\n",
    )
    rows, skipped, columns = compare_table(MODEL, path, opened=opened)
    assert [r.predicted_ms for r in rows] == pytest.approx([one, four])
    assert skipped == {"bad: no network 'bad'": 1}
    found = summary(rows)
    assert found["median"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(0.1)
    assert (found["networks"], found["within_10"], found["intervals"]) == (2, 0.5, 2)
    written = list(csv.DictReader(predictions(rows, columns).splitlines()))
    assert list(written[0]) == [*columns, "predicted_ms", "low_ms", "high_ms"]
    assert float(written[1]["predicted_ms"]) == pytest.approx(four)
    assert float(written[1]["low_ms"]) < four < float(written[1]["high_ms"])
    assert written[0]["note"] == "x"


def test_what_a_model_of_inference_does_not_answer(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "device,network,pass,compiled,parallel,batch_size,latency_ms\n"
        "one,a,inference,no,,1,3\n"
        "one,a,training,no,,1,3\n"
        "one,a,inference,yes,,1,3\n"
        "one,a,inference,no,dp4,1,3\n"
        "two,a,inference,no,,1,3\n",
    )
    rows, skipped, _ = compare_table(MODEL, path, "one", opened)
    assert len(rows) == 1
    assert skipped == {
        "no inference": 1, "compiled": 1, "on several devices": 1, "of another device": 1,
    }  # fmt: skip


def test_names_as_the_published_tables_have_them(tmp_path: Path) -> None:
    (tmp_path / "networks").mkdir()
    config = tmp_path / "networks" / "bert.json"
    config.write_text("{}")
    asked: list[tuple[str, Any]] = []

    def remember(spec: str, size: Any) -> Graph:
        asked.append((spec, size))
        return NETWORK

    path = table(
        tmp_path, "network,sequence_length,latency_ms\nbert,512,3\nkeras:X,,4\nbert,512,5\n"
    )
    compare_table(MODEL, path, opened=remember)
    assert asked == [(f"transformers:{config}", 512), ("keras:X", None)], "each is read once"
    asked.clear()
    compare_table(
        MODEL, table(tmp_path, "model,pixels,batch_size,step_ms\nvit,160,8,3\n"), opened=remember
    )
    assert asked == [("timm:vit", 160)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "is no table of networks; expected the columns network"),
        ("network,latency_ms\na,none\n", "line 2: latency_ms is 'none'; expected a number above 0"),
        ("network,latency_ms,batch_size\na,1,-1\n", "batch_size is '-1'"),
        ("network,latency_ms\n", "no row could be compared (it has no rows)"),
        ("network,latency_ms\nbad,1\nbad,2\n", "(2 x bad: no network 'bad')"),
    ],
)
def test_a_table_that_cannot_be_compared(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        compare_table(MODEL, table(tmp_path, text), opened=opened)
    assert said in str(error.value)
