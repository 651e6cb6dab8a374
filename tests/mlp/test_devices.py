"""Facts of GPUs: the built-in table and files of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from lolat.errors import InputError
from lolat.mlp.devices import DEVICES, Device, key, known, read_devices


def test_the_six_of_the_paper_have_the_facts_it_was_trained_on() -> None:
    expected = {
        "v100": (900, 5120, 1455), "p100": (732, 3584, 1303), "1080ti": (484, 3584, 1582),
        "m60": (160, 2048, 1178), "k40": (288, 2880, 875), "k80": (240, 2496, 875),
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
    assert 2 * DEVICES[key(name)].peak_macs / 1e12 == pytest.approx(tflops, rel=0.025)
    assert DEVICES[key(name)].bandwidth == DEVICES[key(name)].bandwidth_gbs * 1e9


@pytest.mark.parametrize(
    ("name", "own"),
    [("v100", "V100"), ("NVIDIA Tesla V100", "V100"), ("1080TI", "1080ti"), ("k80", "K80"),
     ("GTX 1080 Ti", "1080ti"), ("gtx1080", "GTX 1080"), ("GeForce RTX 2080 Ti", "RTX 2080 Ti")],
)  # fmt: skip
def test_names_are_found_without_regard_to_case_and_maker(name: str, own: str) -> None:
    (device,) = known([name, own], DEVICES).values()
    assert device.name == own


def test_an_unknown_gpu_is_an_error() -> None:
    assert len(DEVICES) == 15
    for name in ("X1", "nvidia"):
        with pytest.raises(InputError) as caught:
            known(["V100", name], DEVICES)
        assert (caught.value.code, caught.value.arguments) == ("unknown-gpu", ["facts"])


def test_a_file_of_data_sheets(tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text(
        "Clock,name,cores,bandwidth,year,note\n1500,X1,100,512.5,2024,mine\n100,x2,1,1,,\n"
    )
    assert read_devices(path) == {
        "x1": Device("X1", 512.5, 100, 1500, 2024), "x2": Device("x2", 1, 1, 100),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("X,,1,100", "bandwidth is empty"),
        ("X,1,1,1.4", "clock is '1.4'"),
        ("X,9e11,1,100", "'9e11'"),
    ],
)
def test_wrong_facts_are_named(tmp_path: Path, row: str, words: str) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text(f"name,bandwidth,cores,clock\n{row}\n")
    with pytest.raises(InputError, match=f"line 2: .*{words}"):
        read_devices(path)
