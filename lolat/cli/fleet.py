"""`lolat learn --fleet`: the models of all nodes of a Ray cluster, gathered in a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lolat.cli.errors import INTERRUPTED, say
from lolat.cli.ray_cluster import connected
from lolat.errors import InputError, LolatError, MeasuringError

if TYPE_CHECKING:
    from microbench.fleet import Failed, Measure, Measured, Node


def learn_fleet(
    address: str,
    device: str,
    output: Path | None,
    backend: str | None,
    options: Sequence[str],
    restart: bool,
    measure: Measure | None = None,
) -> None:
    """Measure every node of the cluster at `address` that has no model in the folder `output` yet.

    `output`: models/local/fleet (or that of the user's data folder) if None; `measure`: what a node is
    to do, `microbench.fleet.measure_here` if None. Models are written as they come. MeasuringError, in the
    end, where nodes failed; InputError for a wrong call and where the cluster has no such node.
    """
    from lolat.cli.progress import progress
    from lolat.places import local_folder
    from microbench import backends, fleet

    if backend is not None:
        backends.joined(backend, options)
    folder = local_folder() / "fleet" if output is None else output
    check_folder(folder)
    with connected(address):
        nodes, failed = fleet.survey(device)
        if not nodes and not failed:
            raise InputError(
                f"the cluster has no node with a {device} to measure; expected one to which Ray may give "
                "work (`ray status` lists them)"
            )
        targets = files(folder, nodes, "-".join(filter(None, [backend, *options])))
        there = [node for node in nodes if targets[node].exists() and not restart]
        left = [node for node in nodes if node not in there]
        for node in there:
            say(f"{node.name}: measured already, {targets[node]} (--restart measures it again)")
        written: list[Path] = []
        with progress() as bar:
            if left:
                bar.start("measuring nodes", len(left))
            found = fleet.measure_nodes(
                left, device, backend, tuple(options), restart, measure or fleet.measure_here
            )
            try:
                for node, came in found:
                    bad = keep(targets[node], came)
                    if bad is None:
                        written.append(targets[node])
                        bar.note(f"{node.name}: written {targets[node]}")
                        for remark in getattr(came, "warnings", ()):
                            bar.note(f"{node.name}: warning: {remark}")
                    else:
                        failed.append(bad)
                        bar.note(f"{bad.name}: not measured: {bad.reason}")
                    bar.step()
            except KeyboardInterrupt:
                say(f"interrupted; {len(written)} models are in {folder}, the same command goes on")
                raise click.exceptions.Exit(INTERRUPTED) from None
    for line in summary(folder, len(nodes), len(written), len(there)):
        click.echo(line)
    if failed:
        first = "; ".join(f"{bad.name}: {bad.reason}" for bad in failed[:3])
        more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
        raise MeasuringError(
            f"{len(failed)} node{'s' * (len(failed) > 1)} not measured ({first}{more}); the same command "
            "measures those only, once they are back"
        )


def files(folder: Path, nodes: Sequence[Node], with_what: str) -> dict[Node, Path]:
    """The model file of each node; several nodes of one host and processor are numbered."""
    used: Counter[str] = Counter()
    found = {}
    for node in nodes:
        stem = "-".join(
            [node.name, *[with_what.replace("_", "-").replace("=", "-")] * bool(with_what)]
        )
        used[stem] += 1
        found[node] = folder / f"{stem}{f'-{used[stem]}' if used[stem] > 1 else ''}.json"
    return found


def keep(path: Path, came: Measured | Failed) -> Failed | None:
    """Fit what a node measured and write its model; or why there is none."""
    from lolat.learning import model_document
    from lolat.model_file import write
    from microbench.fleet import Failed

    if isinstance(came, Failed):
        return came
    try:
        write(
            path,
            model_document(
                path.stem, came.device, came.points, came.environment, came.noise, came.warnings
            ),
        )
    except LolatError as error:
        return Failed(path.stem, str(error))
    return None


def summary(folder: Path, nodes: int, written: int, there: int) -> list[str]:
    """What became of the nodes, for people."""
    before = f", {there} measured before" if there else ""
    return [
        f"{nodes} node{'s' * (nodes != 1)}: {written} measured now{before}",
        f"models: {folder}",
    ]


def check_folder(folder: Path) -> None:
    """InputError now rather than after minutes of measuring, if `folder` cannot hold the models."""
    from lolat.cli.learn import check_writable

    if folder.exists() and not folder.is_dir():
        raise InputError(
            f"--output {folder} is a file; with --fleet expected a folder, for a model of each node"
        )
    check_writable(folder / "model.json")
