"""Facts of GPUs: the built-in table and files of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.mlp.devices import DEVICES, Device, facts, find, key, known, merged, read_devices

FILE = "name,bandwidth,cores,clock\n"


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_devices(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gpus.txt"
    path.write_text(text)
    return path


def test_the_six_of_the_paper_have_the_facts_it_was_trained_on() -> None:
    expected = {
        "V100": (900, 5120, 1455), "P100": (732, 3584, 1303), "1080ti": (484, 3584, 1582),
        "M60": (160, 2048, 1178), "K40": (288, 2880, 875), "K80": (240, 2496, 875),
    }  # fmt: skip
    for name, (bandwidth, cores, clock) in expected.items():
        device = DEVICES[name]
        assert (device.bandwidth_gbs, device.cores, device.clock_mhz) == (bandwidth, cores, clock)


@pytest.mark.parametrize(
    ("name", "tflops"),
    # Float32 TFLOP/s that the makers' data sheets give, two per multiply-accumulate.
    [("A100", 19.5), ("T4", 8.1), ("L4", 30.3), ("RTX 4090", 82.6), ("RTX 3090", 35.6), ("H100", 67),
     ("P40", 12), ("RTX 2080 Ti", 13.4), ("GTX 1080", 8.9)],
)  # fmt: skip
def test_cores_and_clock_give_the_peak_of_the_data_sheet(name: str, tflops: float) -> None:
    assert 2 * DEVICES[name].peak_macs / 1e12 == pytest.approx(tflops, rel=0.025)
    assert DEVICES[name].bandwidth == DEVICES[name].bandwidth_gbs * 1e9


@pytest.mark.parametrize(
    ("name", "own"),
    [("v100", "V100"), ("NVIDIA Tesla V100", "V100"), ("1080TI", "1080ti"), ("k80", "K80"),
     ("GTX 1080 Ti", "1080ti"), ("gtx1080", "GTX 1080"), ("GeForce RTX 2080 Ti", "RTX 2080 Ti")],
)  # fmt: skip
def test_names_are_found_without_regard_to_case_and_maker(name: str, own: str) -> None:
    assert find(name, DEVICES) == DEVICES[own]


def test_no_two_built_in_names_are_one() -> None:
    assert len({key(name) for name in DEVICES}) == len(DEVICES)
    assert find("X1", DEVICES) is None
    assert find("nvidia", DEVICES) is None


def test_an_unknown_gpu_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(InputError) as caught:
        known(["V100", "X1"], DEVICES)
    assert caught.value.code == "unknown-gpu"
    assert caught.value.arguments == ["facts"]


def test_facts_of_rows() -> None:
    names = np.array(["v100", "K80", "V100"])
    assert list(known(names.tolist(), DEVICES)) == ["V100", "K80"]
    assert facts(names, DEVICES, "cores").tolist() == [5120, 2496, 5120]
    assert facts(np.array([], dtype=str), DEVICES, "cores").tolist() == []


def test_a_later_source_counts() -> None:
    own = {"v100": Device("v100", 1, 2, 300)}
    found = merged(DEVICES, own)
    assert find("V100", found) == own["v100"]
    assert len(found) == len(DEVICES)


def test_a_file_of_data_sheets(tmp_path: Path) -> None:
    header = "Clock,gpu,cores,bandwidth_gbs,memory,year,bus,note\n"
    text = header + "1500,X1,100,512.5,24,2024,PCIe 5.0,mine\n100,X2,1,1,,,,\n"
    assert read_devices(written(tmp_path, text)) == {
        "X1": Device("X1", 512.5, 100, 1500, 2024),
        "X2": Device("X2", 1, 1, 100),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,bandwidth,cores\nX,1,1\n", "line 2: lacks clock"),
        (FILE + "X,,1,100\n", "line 2: lacks bandwidth"),
        (FILE + "X,1,1,1.4\n", "line 2: clock is '1.4'"),
        (FILE + "X,9e11,1,100\n", "bandwidth is '9e11'"),
        (FILE + "X,1,1.5,100\n", "cores is '1.5'"),
        (FILE + "X,nan,1,100\n", "bandwidth is 'nan'"),
        (FILE + "X,1,1,100\nx,1,1,100\n", "line 3: 'x' is there twice"),
    ],
)
def test_wrong_facts_are_named(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(written(tmp_path, text))
