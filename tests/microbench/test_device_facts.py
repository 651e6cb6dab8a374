"""Facts of the device: given, built in, or found on this computer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lolat.errors import InputError
from lolat.mlp.devices import DEVICES, Device
from microbench import learn_layers as facts_module
from microbench.learn_layers import COPIES, copy_bandwidth, cpu_facts, device_facts

CPUINFO = "model name\t: Some CPU\ncpu MHz\t\t: 2100.5\nflags\t\t: fpu sse2 {flags}\ncpu MHz\t\t: 2300.0\n"


def system(folder: Path, cpuinfo: str = "", clock_khz: str = "") -> Path:
    """A folder with what the system says of its processors."""
    for name, text in (
        ("proc/cpuinfo", cpuinfo),
        ("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", clock_khz),
    ):
        if text:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "cpu_count", lambda: 2)
    monkeypatch.setattr(facts_module, "copy_bandwidth", lambda threads, clock: 10.04 * threads)


@pytest.mark.usefixtures("two_processors")
@pytest.mark.parametrize(("flags", "lanes"), [("avx2 fma avx512f", 32), ("avx2 fma", 16), ("", 4)])
def test_a_processor_in_the_terms_of_a_gpu(tmp_path: Path, flags: str, lanes: int) -> None:
    found = cpu_facts("desk", system(tmp_path, CPUINFO.format(flags=flags)))
    assert found == Device("desk", 20.1, 2 * lanes, 2300.0)


@pytest.mark.usefixtures("two_processors")
def test_the_highest_clock_where_the_system_says_it(tmp_path: Path) -> None:
    found = cpu_facts("desk", system(tmp_path, CPUINFO.format(flags=""), "3700000\n"))
    assert found.clock_mhz == 3700.0


@pytest.mark.usefixtures("two_processors")
def test_a_system_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert cpu_facts("desk", tmp_path) == Device("desk", 20.1, 8, 2500.0)
    monkeypatch.setattr("sys.platform", "darwin")
    assert cpu_facts("desk", tmp_path).cores == 16


def test_bandwidth_is_twice_the_copied_bytes_in_the_fastest_time() -> None:
    def ticks() -> Iterator[float]:
        now = 0.0
        for number in range(COPIES + 1):
            yield now
            now += 0.5 if number == 3 else 2.0
            yield now

    clock = ticks()
    # 1,000,000 bytes read and as many written in 0.5 s
    assert copy_bandwidth(3, lambda: next(clock), 1_000_000) == pytest.approx(0.004)


def test_given_facts_come_first_then_built_in_ones_then_those_found() -> None:
    given = {"desk": Device("desk", 1.0, 2, 3000.0), "V100": Device("V100", 5.0, 2, 1000.0)}

    def found(name: str) -> Device:
        return Device(name, 9.0, 9, 900.0)

    assert device_facts("cpu", "desk", given, found) is given["desk"]
    assert device_facts("gpu", "NVIDIA V100", given, found) is given["V100"]
    assert device_facts("gpu", "Tesla P100", {}, found) is DEVICES["P100"]
    assert device_facts("cpu", "lap", given, found).bandwidth_gbs == 9.0


def test_a_gpu_that_nobody_knows() -> None:
    with pytest.raises(InputError, match=r"unknown GPU 'Banana 9000'.*--facts FILE"):
        device_facts("gpu", "Banana 9000", {})
