"""Published measurements as the tables that the benchmarks read (docs/reference/files.md).

    python benchmarks/importing.py timm     CHECKOUT FOLDER    huggingface/pytorch-image-models
    python benchmarks/importing.py neusight CHECKOUT FOLDER    sitar-lab/NeuSight
    python benchmarks/importing.py help     CHECKOUT FOLDER    HayeonLee/HELP; needs PyTorch

CHECKOUT is a clone of the repository; the tables go to FOLDER.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
TIMM = ("model", "pixels", "batch_size", "step_ms", "params_millions", "gmacs", "macts")
OPERATION = (
    "op", "batch", "m", "n", "k", "rows", "width", "in_channels", "out_channels", "kernel", "input_size",
    "stride", "padding", "latency_ms",
)  # fmt: skip
NETWORK = (
    "device", "network", "pass", "sequence_length", "batch_size", "compiled", "parallel", "layers",
    "latency_ms", "forward_ms", "backward_ms",
)  # fmt: skip
DEVICE = (
    "device", "memory_gib", "bandwidth_gb_s", "multiprocessors", "cores_per_multiprocessor", "clock_mhz",
    "fp32_vector_gflops", "fp32_matrix_gflops", "l2_mb",
)  # fmt: skip
SIZES = {
    "Input_Channel": "in_channels", "Output_Channel": "out_channels", "Kernel_Szie": "kernel",
    "Input_Size": "input_size", "Stride": "stride", "Padding": "padding", "M": "m", "N": "n", "K": "k",
}  # fmt: skip
"""NeuSight's columns and ours; B is the batch of a product and the rows of all else."""
NAMES = {
    "h100-80gb-hbm3": "h100-sxm-80gb",
    "a100-sxm4-40gb": "a100-sxm-40gb",
    "a100-80gb-pcie": "a100-pcie-80gb",
}


def write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """A table, gzipped where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if path.suffix == ".gz" else open)(
        path, "wt", encoding="utf-8", newline=""
    ) as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    print(path)


def read(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def timm(checkout: Path, folder: Path) -> None:
    """results/benchmark-*.csv: one table each, inference or training by its name."""
    for path in sorted((checkout / "results").glob("benchmark-*.csv")):
        name = path.stem.removeprefix("benchmark-")
        of = "train" if name.startswith("train") else "infer"
        columns = [f"{of}_img_size", f"{of}_batch_size", f"{of}_step_time", "param_count"]
        columns += [f"{of}_gmacs", f"{of}_macts"]
        rows = [
            dict(zip(TIMM, [row["model"], *(row.get(c, "") for c in columns)], strict=True))
            for row in read(path)
            if row.get(columns[2])
        ]
        write(folder / "timm" / f"{name}.csv.gz", TIMM, rows)


def device(name: str) -> str:
    """NeuSight's name of a GPU in the form of the tables: `Tesla V100-PCIE-32GB` is v100-pcie-32gb."""
    plain = re.sub(r"^(nvidia|tesla|amd instinct)[ _]", "", name.lower().replace("_", " "))
    plain = plain.replace(" ", "-")
    return NAMES.get(plain, plain)


def neusight(checkout: Path, folder: Path) -> None:
    """Operations of each GPU, whole networks, and what the data sheets say."""
    data, out = checkout / "scripts/asplos/data", folder / "neusight"
    of: dict[str, dict[tuple[Any, ...], Row]] = defaultdict(dict)
    for path in sorted(data.glob("dataset*/**/*.csv")):
        for row in read(path):
            if not {"OPName", "Device", "Latency", "B"} <= row.keys():
                break
            found = {ours: row[theirs] for theirs, ours in SIZES.items() if row.get(theirs)}
            products = row["OPName"] in ("linear", "bmm", "conv")
            found |= {"batch": row["B"]} if products else {"rows": row["B"], "width": row["H"]}
            found |= {"op": row["OPName"], "latency_ms": f"{float(row['Latency']):.6g}"}
            key = tuple(found.get(c) for c in OPERATION[:-1])
            of[device(row["Device"])].setdefault(key, found)
    for name, rows in of.items():
        write(out / f"kernels-{name}.csv.gz", OPERATION, rows.values())
    write(out / "networks.csv", NETWORK, networks(checkout / "scripts/asplos/label"))
    write(out / "devices.csv", DEVICE, map(facts, sorted((data / "device_configs").glob("*.json"))))
    for path in (data / "DLmodel_configs").glob("*.json"):
        (out / "networks").mkdir(exist_ok=True)
        (out / "networks" / path.name).write_bytes(path.read_bytes())


def networks(labels: Path) -> Iterator[Row]:
    """DEVICE/NETWORK-PASS-LENGTH-BATCH[-fusion|-PARALLEL].json: times of a whole network."""
    for path in sorted(labels.glob("*/*.json")):
        network, passed, length, batch, *way = path.stem.split("-")
        times = json.loads(path.read_text(encoding="utf-8"))
        yield {
            "device": device(path.parent.name), "network": network, "sequence_length": length,
            "pass": {"inf": "inference", "train": "training"}[passed], "batch_size": batch,
            "compiled": "yes" if "fusion" in way else "no",
            "parallel": next((w for w in way if w != "fusion"), ""), "layers": times.get("num_layer", ""),
            "latency_ms": f"{times['e2e_latency']:.6g}", "forward_ms": f"{times.get('fw_latency', 0):.6g}",
            "backward_ms": f"{times.get('bwall_latency', 0):.6g}",
        }  # fmt: skip


def facts(path: Path) -> Row:
    """A data sheet. The power, which helps, is not in it: add a column power_w from the maker's."""
    told = json.loads(path.read_text(encoding="utf-8"))
    names = ("Mem_Bw", "Num_Sm", "Core_Per_SM", "Freq")
    rate = told.get("SingleFLOPs")
    values = [device(told["Device"]), told["Dev_Mem"], *(told[n] for n in names)]
    values += [told.get("SingleFLOPsVEC", rate), told.get("SingleFLOPsMM", rate), told["L2Cache"]]
    return dict(zip(DEVICE, values, strict=True))


def help_tables(checkout: Path, folder: Path) -> None:
    """Both spaces: a row for each network, a column of milliseconds for each device."""
    import torch

    def opened(path: Path) -> Any:
        return torch.load(path, weights_only=True)  # opens no code

    data = checkout / "data"
    archs = {
        "nasbench201": list(opened(data / "nasbench201/str_arch2idx.pt")),
        "fbnet": ["".join(map(str, arch)) for arch in opened(data / "fbnet/arch.pt")],
    }
    for space, of in archs.items():
        times = {p.stem: opened(p) for p in sorted((data / space / "latency").glob("*.pt"))}
        rows = (
            {"index": i, "arch": arch} | {name: f"{float(t[i]):.6g}" for name, t in times.items()}
            for i, arch in enumerate(of)
        )
        write(folder / f"{space}_latency.csv.gz", ["index", "arch", *times], rows)


SOURCES = {"timm": timm, "neusight": neusight, "help": help_tables}

if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in SOURCES:
        raise SystemExit((__doc__ or "").strip())
    SOURCES[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
