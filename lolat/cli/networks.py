"""`lolat read` and `lolat cache`: networks in files, so that a question needs no framework."""

from __future__ import annotations

from pathlib import Path

import click

from lolat.cli import common


@common.command("lolat read keras:ResNet50 --output resnet50.json")
@common.network_argument
@common.size_option
@common.output_option(required=True, more="A JSON file.")
@common.json_option
def read(network: str, input_size: tuple[int, ...], output: Path, as_json: bool) -> None:
    """Write NETWORK to a JSON file, which every command takes as NETWORK, without its framework.

    It holds operations and shapes, no weights.
    """
    from lolat import readers
    from lolat.graph.counts import count
    from lolat.io.documents import to_json
    from lolat.io.writing import write_text
    from lolat.units import plain, plural, quantity

    graph = readers.read(network, input_size)
    counts = count(graph)
    total, warnings = counts.total(), tuple(dict.fromkeys((*graph.warnings, *counts.warnings)))
    write_text(output, to_json(graph.to_dict(), str(output)))
    common.warn(warnings)
    found = {"network": graph.name, "output": str(output), "operations": len(graph.operations)}
    found |= {"counts": total._asdict(), "warnings": list(warnings)}
    what = f"{plain(graph.name)}, {plural(len(graph.operations), 'operation')}"
    line = f"written: {plain(str(output))} ({what}, {quantity(total.flops, 'MACs')})"
    common.answer("network-file", found, as_json, [line])


@common.command("lolat cache", "lolat cache --clear")
@common.option(
    "--clear", is_flag=True, help="Remove what is kept; it is read again when it is asked for."
)
@common.json_option
def cache(clear: bool, as_json: bool) -> None:
    """Where networks that were read are kept, how many and how large; the least recently used go first.

    LOLAT_CACHE names another folder; LOLAT_CACHE=off keeps nothing.
    """
    from lolat.readers.cache import Cache, shipped_networks
    from lolat.units import plain, plural, quantity

    kept = Cache()
    networks, held_bytes = kept.held()
    if clear:
        kept.trim(0)
    folder, shipped = kept.folder and str(kept.folder), shipped_networks()
    if as_json:
        found = {"folder": folder, "networks": networks, "held_bytes": held_bytes}
        more = {"most_bytes": kept.most_bytes, "cleared": clear, "shipped": shipped}
        common.say_json("cache", {**found, **more})
        return
    if folder is None:
        click.echo("nothing is kept: LOLAT_CACHE is off, or no home folder is known")
    else:
        size, most = quantity(held_bytes, "B"), quantity(kept.most_bytes, "B")
        verb = "removed" if clear else "kept"
        click.echo(
            f"{plain(str(folder))}: {verb} {plural(networks, 'network')}, {size} (at most {most})"
        )
    click.echo(
        f"{plural(len(shipped), 'network')} come with LoLat: keras.applications and known ones of timm"
    )
