"""The table of epochs: what is read, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lolat.errors import InputError
from lolat.training.fitting import Epoch, read_epochs

HEAD = "network,batch_size,samples,optimizer,epoch_s\n"


def test_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text(
        "\ufeffEpoch_s, network,Optimizer,batch_size,more,samples\n"
        '1.5,"generate:fc?config={""layers"": [10, 20]}",Adam,8,x,100\n'
        "2e-3,keras:VGG16,sgd,16,,1e3\n",
        encoding="utf-8",
    )
    assert read_epochs(path) == [
        Epoch('generate:fc?config={"layers": [10, 20]}', 8, 100, "adam", 1.5, 2),
        Epoch("keras:VGG16", 16, 1000, "sgd", 0.002, 3),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (HEAD, "has no rows"),
        (HEAD.replace(",samples", ""), "lacks the column samples; expected"),
        (
            HEAD + "a,8,100,sgd,nan\n",
            "line 2: epoch_s is 'nan'; expected a time above 0, in seconds",
        ),
        (HEAD + "a,8,100,sgd,inf\n", "epoch_s is 'inf'"),
        (HEAD + "a,8,100,sgd,-1\n", "epoch_s is '-1'"),
        (HEAD + "a,8,100,sgd,\n", "epoch_s is empty"),
        (HEAD + "a,8,100,sgd\n", "line 2: 4 cells; expected 5"),
        (
            HEAD + "a,8,100,sgd,1\na,nan,100,sgd,1\n",
            "line 3: batch_size is 'nan'; expected a whole",
        ),
        (HEAD + "a,0,100,sgd,1\n", "batch_size is '0'"),
        (HEAD + "a,1.5,100,sgd,1\n", "batch_size is '1.5'"),
        (HEAD + "a,8,-5,sgd,1\n", "samples is '-5'"),
        (HEAD + "a,8,many,sgd,1\n", "samples is 'many'"),
        (HEAD + "a,101,100,sgd,1\n", "line 2: a batch of 101 is larger than the data set of 100"),
        (HEAD + "a,8,100,lion,1\n", "line 2: optimizer 'lion': expected one of sgd, momentum"),
        (HEAD + " ,8,100,sgd,1\n", "line 2: network is empty"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "e.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_epochs(path)
    assert said in str(error.value)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file; expected a CSV table"):
        read_epochs(tmp_path / "none.csv")
    (tmp_path / "e.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_epochs(tmp_path / "e.csv")
