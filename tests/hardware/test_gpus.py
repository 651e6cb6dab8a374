"""Data sheets: names as frameworks and people write them, memory, rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

import lolat
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.modes import BFLOAT16, FLOAT16, FLOAT32, PRECISION_OF, Mode, dtype_named
from lolat.hardware.card_names import card_of, find_gpu, is_card, is_one_card
from lolat.hardware.environment_section import Environment
from lolat.hardware.gpus import Gpu, sheets
from lolat.hardware.hardware import Hardware
from lolat.hardware.specs import listed_specs
from lolat.llm.gpu import sheet_of
from tests.synthetic import network

NAMES = {
    "NVIDIA A100-SXM4-80GB": ("A100 SXM 80 GB", 80),
    "NVIDIA A100-SXM4-40GB": ("A100 SXM 40 GB", 40),
    "a100-pcie-40gb (from 42113 operations and 6 networks, float32)": ("A100 PCIe 40 GB", 40),
    "NVIDIA A100 80GB PCIe": ("A100 PCIe 80 GB", 80),
    "A100-80GB": ("A100 PCIe 80 GB", 80),
    "NVIDIA H100 80GB HBM3": ("H100 SXM", 79.6),
    "NVIDIA H100 PCIe": ("H100 PCIe", 79.6),
    "NVIDIA H200": ("H200 SXM", 140.4),
    "NVIDIA GeForce RTX 4090": ("RTX 4090", 24),
    "rtx-3090": ("RTX 3090", 24),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": ("RTX PRO 6000 Max-Q", 95.6),
    "NVIDIA RTX 6000 Ada Generation": ("RTX 6000 Ada", 48),
    "NVIDIA RTX A6000": ("RTX A6000", 48),
    "Tesla V100-SXM2-16GB": ("V100 SXM 16 GB", 16),
    "v100-pcie-32gb": ("V100 PCIe 32 GB", 32),
    "V100": ("V100 PCIe 16 GB", 16),
    "Tesla T4": ("T4", 15),
    "NVIDIA L4": ("L4", 22.5),
    "NVIDIA L40S": ("L40S", 45),
    "NVIDIA GeForce GTX 1080 Ti": ("GTX 1080 Ti", 11),
    "NVIDIA A10G": ("A10G", 22.5),
    "NVIDIA H200 NVL": ("H200 NVL", 140.4),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": ("RTX PRO 6000", 95.6),
    "H100-80GB-HBM3": ("H100 SXM", 79.6),
    "Tesla K40m": ("K40", 11.2),
    "AMD Instinct MI210": ("MI210", 64),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_is_found_by_its_name(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu is not None
    assert (gpu.name, gpu.memory_gib) == NAMES[name]


@pytest.mark.parametrize(
    ("name", "card"),
    [("infer-amp-nchw-pt240-cu124-rtx3090.csv", "RTX 3090"), ("a100-sxm4-80gb", "A100"),
     ("NVIDIA H100 PCIe", "H100"), ("train-fp32-v100_16gb", "V100"), ("infer-fp32-nhwc-cpu", None)],
)  # fmt: skip
def test_the_card_in_a_name(name: str, card: str | None) -> None:
    assert card_of(name) == card


SXM_NAMES = (
    "{card}-sxm{gib}gb", "{card}-sxm4-{gib}g", "{card}sxm2-{gib}gb", "{card}-sxm-{gib}g",
    "{card}-{gib}g-sxm", "{card}_{gib}gbsxm4", "{card}-SXM4-{gib}GB", "{card}sxm{gib}gb",
)  # fmt: skip


@pytest.mark.parametrize("sheet", [g for _, g in sheets() if "SXM" in g.name], ids=lambda g: g.name)
def test_a_name_with_sxm_is_never_a_pcie_card(sheet: Gpu) -> None:
    card, gib = (
        sheet.name.split()[0],
        {79.6: 80, 140.4: 141}.get(sheet.memory_gib or 0, sheet.memory_gib),
    )
    for pattern in SXM_NAMES:
        assert find_gpu(pattern.format(card=card.lower(), gib=int(gib or 0))) == sheet, pattern


OTHERS = [
    "AMD EPYC, 2 threads", "Intel Core i7-12700H", "box", "80gb", "", "NVIDIA GeForce RTX 3080 Ti",
    "NVIDIA GeForce RTX 3080 12GB", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4080 SUPER", "NVIDIA H100 NVL", "NVIDIA GH200 480GB", "NVIDIA H20",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "GRID T4-16Q",
    "NVIDIA A10-24Q",
    "Tesla V100S-PCIE-32GB", "Tesla V100-SXM3-32GB", "Tesla P100-PCIE-12GB",
    "NVIDIA RTX A4000 Laptop GPU", "NVIDIA RTX A5500",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA L20",
    "2x A100", "H100 x8", "GTX 4090", "gtx4090", "RTX 1080",
]  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_known_gpu_has_no_sheet(name: str) -> None:
    assert find_gpu(name) is None


def test_rates_are_those_of_the_makers_sheets() -> None:
    """NVIDIA, A100: 19.5, 156 and 312 TFLOPS; V100 and T4 have no bfloat16 and no TF32.

    PyTorch on ROCm computes float32 without the TF32 units of an MI300X.
    """
    a100, v100, p100, mi300x = (find_gpu(n) for n in ("A100", "V100", "P100", "MI300X"))
    assert a100 is not None
    assert v100 is not None
    assert p100 is not None
    assert mi300x is not None
    assert mi300x.rate("tf32") is None
    rates = [a100.rate(t) for t in ("float32", "tf32", "amp", "float16", "bfloat16")]
    assert rates == [19.5, 156, 312, 312, 312]
    assert [v100.rate(t) for t in ("float32", "tf32", "amp", "bfloat16")] == [14, None, 112, None]
    assert [p100.rate(t) for t in ("float32", "amp")] == [9.3, None]


def product(side: int) -> Graph:
    """A square matrix times another one."""
    b = GraphBuilder("product", "torch")
    x = b.input((side, side))
    return b.build(
        [b.add("dense", [x], (side, side), in_features=side, out_features=side, bias=False)]
    )


def test_bfloat16_has_the_rate_that_a_sheet_gives_it() -> None:
    """AMD, MI100: 184.6 TFLOPS in float16, 92.3 in bfloat16; MI210 and MI250 have one rate for both."""
    gpus = {name: find_gpu(name) for name in ("MI100", "MI210", "MI250", "MI300X")}
    peaks = {name: [gpu.peak(t) for t in (FLOAT16, BFLOAT16)] for name, gpu in gpus.items() if gpu}
    assert peaks["MI100"] == [184.6, 92.3]
    assert all(half == bfloat16 for name, (half, bfloat16) in peaks.items() if name != "MI100")
    (served,) = (sheet_of(gpu, None) for gpu in [gpus["MI100"]] if gpu)
    assert served is not None
    assert served.bf16_tflops == 92.3


def test_products_take_as_much_longer_in_bfloat16_as_its_rate_is_lower() -> None:
    """Power sustains a larger share of the lower rate, so that the time is less than twice as long."""
    device, network = lolat.load("mi100"), product(8192)
    half = device.run_as("fp16")
    ms, longer = half.predict(network).latency_ms, device.run_as("bf16").predict(network).latency_ms
    assert 1.5 < longer / ms < 2.0
    assert longer > 2 * 8192**3 / 92.3e9
    assert half.run_as("bf16").predict(network).latency_ms == pytest.approx(longer)
    assert device.run_as("bf16").run_as("fp16").predict(network).latency_ms == pytest.approx(ms)


def test_a_gpu_of_little_power_sustains_less_than_its_sheet() -> None:
    t4 = find_gpu("T4")
    assert t4 is not None
    sustained = t4.rate("amp")
    assert sustained is not None
    assert 0.4 * 65 < sustained < 0.8 * 65


def test_what_a_file_says_comes_before_the_table() -> None:
    gpu = Hardware("rtx 4090", Environment(sheet={"memory_gib": 48})).gpu
    assert gpu is not None
    assert (gpu.memory_gib, gpu.half_tflops) == (48, 165.2)
    own = Hardware("box", Environment(sheet={"memory_gib": 8, "unknown": 1})).gpu
    assert own is not None
    assert (own.memory_gib, own.rate("amp")) == (8, None)


def test_the_memory_that_a_network_may_take() -> None:
    """All but 6 % and half a GiB of a GPU's; what was free of a CPU's; not known of an unknown device."""
    assert Hardware("RTX 4090").available_bytes == int(24 * 2**30 * 0.94) - 2**29
    gpu = Hardware("new", Environment(device="gpu", memory_bytes=24 * 2**30))
    assert gpu.available_bytes == int(24 * 2**30 * 0.94) - 2**29
    assert Hardware("T4", Environment(device="cpu", available_bytes=7)).available_bytes == 7
    assert Hardware("box").available_bytes is None


@pytest.mark.parametrize(("name", "dies"), [("mi250", 2), ("k80", 2), ("mi210", None)])
def test_a_card_of_two_gpus_is_answered_for_one_and_says_so(name: str, dies: int | None) -> None:
    """AMD's sheet of the MI250 has 208 compute units and 3,277 GB/s, NVIDIA's of the K80 480 GB/s."""
    gpu = find_gpu(name)
    assert gpu is not None
    assert gpu.dies == dies
    found = lolat.load(name).predict(network())
    assert any("a card is 2 GPUs" in w for w in found.warnings) is (dies is not None)
    both = {"mi250": 3277, "k80": 480}.get(name)
    assert both is None or (gpu.bandwidth_gb_s or 0) * 2 == pytest.approx(both, rel=1e-3)


def test_precisions_have_names() -> None:
    assert [PRECISION_OF[dtype_named(p)] for p in ("fp32", "tf32", "amp", "fp16", "bf16")] == [
        "fp32", "tf32", "amp", "fp16", "bf16"
    ]  # fmt: skip
    with pytest.raises(InputError, match="expected one of fp32, tf32, amp, fp16, bf16"):
        dtype_named("int8")


@pytest.mark.parametrize(
    ("name", "fp8", "fp4"),
    [
        ("RTX 5090", 419, 1676),
        ("RTX 4090", 330.3, None),
        ("B200", 4500, 9000),
        ("H100 SXM", 1978.9, None),
        ("A100", None, None),
    ],
)
def test_narrow_types_have_the_rates_of_their_sheets(
    name: str, fp8: float | None, fp4: float | None
) -> None:
    """NVIDIA, RTX Blackwell (1.1): 419 and 1,676 TFLOPS dense of a 5090, eight times half."""
    gpu = find_gpu(name)
    assert gpu is not None
    found = sheet_of(gpu, None)
    assert found is not None
    assert (found.fp8_tflops, found.fp4_tflops) == (fp8, fp4)


@pytest.mark.parametrize(
    "name", ["a100-80gb", "NVIDIA H100 PCIe", "RTX4090", "Tesla T4", "v100-sxm2-16gb"]
)
def test_the_name_of_a_card(name: str) -> None:
    assert is_card(name)


@pytest.mark.parametrize(
    "name", ["a100-foo", "my-t4", "rtx 4090 laptop", "a100-5", "models/a100", "cpu", "h1000"]
)
def test_a_name_with_more_than_a_card_is_none(name: str) -> None:
    assert not is_card(name)


def test_units_for_matrices_do_more_with_the_same_power() -> None:
    """The share of the peak that large products of bfloat16 reach on a L40S is 0.64 to 0.74
    (aiconfigurator's tables), a RTX 3090 and 4090 reach their halved peak (timm's tables).
    """
    shares = {}
    for name in ("L40S", "RTX 3090", "RTX 4090", "A10G"):
        gpu = find_gpu(name)
        assert gpu
        shares[name] = (gpu.rate(FLOAT16) or 0.0) / (gpu.peak(FLOAT16) or 1.0)
    assert 0.85 * shares.pop("L40S") == pytest.approx(0.64, abs=0.08)
    assert min(shares.values()) > 0.9


@pytest.mark.parametrize(
    ("name", "mib"), [("P4", 7611), ("P40", 22919), ("M60", 7618), ("L4", 23034)]
)
def test_error_correction_takes_a_part_of_a_card_s_memory(name: str, mib: int) -> None:
    """What nvidia-smi prints where ECC is on, its default on these."""
    assert find_gpu(name).memory_gib == pytest.approx(mib / 1024, rel=2e-3)


def test_two_names_of_one_card_are_told_from_names_that_may_be_of_several() -> None:
    assert is_one_card("NVIDIA H100 80GB HBM3", "h100-sxm")
    for name, other in (("A100-SXM4-40GB", "a100-sxm"), ("H100", "h100-pcie"), ("H100", "h100-sxm"),
                        ("b200", "h100-sxm"), ("unknown", "unknown")):  # fmt: skip
        assert not is_one_card(name, other)


@pytest.mark.parametrize(
    ("name", "share"),
    [("MI325X", 0.7), ("mi325x", 0.7), ("AMD MI325X", 0.7), ("instinct-mi325x", 0.7), ("mi-355x", 0.7),
     ("AMD Instinct", 0.7), ("MINI", 1.0), ("mini", 1.0), ("Xiaomi 14", 1.0), ("mycard", 1.0)],
)  # fmt: skip
def test_an_instinct_is_one_by_its_name_in_any_case(name: str, share: float) -> None:
    """Of 1,307 TFLOPS in half precision one reaches 915, which is not said to be for want of power."""
    gpu = Gpu(name, fp32_tflops=163.4, half_tflops=1307.0, bf16=True)
    assert [gpu.rate(t) for t in (FLOAT16, BFLOAT16)] == pytest.approx([share * 1307.0] * 2)
    assert gpu.rate(FLOAT32) == 163.4
    told = "1307 TFLOPS in fp16 by its data sheet; an Instinct reaches about 915"
    assert gpu.power_remark(FLOAT16) == told * (share < 1.0)
    assert gpu.power_remark(FLOAT32) == ""
    limited = replace(gpu, power_w=500.0, l2_mib=32.0, vector_tflops=163.4).power_remark(FLOAT16)
    assert limited.endswith(" within its power limit") is (share < 1.0)
    assert ("; its power limit allows" in limited) is (share == 1.0)


def test_float16_is_as_fast_as_bfloat16_where_a_sheet_has_that_alone() -> None:
    """A100's data sheet: 312 TFLOPS in either. A rate of its own is kept."""
    assert Gpu("own", bf16_tflops=312.0).peak(FLOAT16) == 312.0
    assert Gpu("own", bf16_tflops=312.0, half_tflops=400.0).peak(FLOAT16) == 400.0


@pytest.mark.parametrize(
    ("name", "mode", "share"),
    [
        ("RTX 4090", Mode("float16"), 82.6 / 165.2),
        ("H100 SXM", Mode("float16"), 67.0 / 989.4),
        ("H100 SXM", Mode("float16", channels_last=True), 0.5),
        ("H100 SXM", Mode("float16", "compiled"), 0.5),
        ("H100 SXM", Mode(), 1.0),
    ],
)
def test_depthwise_convolutions_start_at_the_rate_of_the_vector_units(
    name: str, mode: Mode, share: float
) -> None:
    """By the data sheets: TFLOPS in float32 without matrix units, and in half precision with them."""
    specs = listed_specs(name)
    assert (specs.of_dtype(mode.dtype) if mode.half else specs).vector_share(mode) == pytest.approx(
        share
    )
