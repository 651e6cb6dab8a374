"""`lolat read` and `lolat cache`: networks in files, so that a question needs no framework."""

from __future__ import annotations

import json

import click

from lolat.cli.common import json_option, network_argument, say, size_option


@click.command()
@network_argument
@size_option
@click.option(
    "--output", required=True, metavar="FILE", help="Write the network to this JSON file."
)
@json_option
def read(network: str, input_size: tuple[int, ...], output: str, as_json: bool) -> None:
    """Write NETWORK to a JSON file, which every command takes as NETWORK, without its framework.

    It holds operations and shapes, no weights. Example: lolat read keras:ResNet50 --output net.json
    """
    from lolat import readers
    from lolat.graph.counts import count
    from lolat.io.documents import to_json
    from lolat.io.writing import write_text
    from lolat.units import plain, plural, quantity

    graph = readers.read(network, input_size)
    counts = count(graph)
    total, warnings = counts.total(), tuple(dict.fromkeys((*graph.warnings, *counts.warnings)))
    write_text(output, to_json(graph.to_dict(), output))
    for warning in warnings:
        say(f"warning: {warning}")
    if as_json:
        found = {"network": graph.name, "output": output, "operations": len(graph.operations)}
        click.echo(json.dumps({**found, "counts": total._asdict(), "warnings": warnings}))
    else:
        what = f"{plain(graph.name)}, {plural(len(graph.operations), 'operation')}"
        click.echo(f"written: {plain(output)} ({what}, {quantity(total.flops, 'MACs')})")


@click.command()
@click.option(
    "--clear", is_flag=True, help="Remove what is kept; it is read again when it is asked for."
)
@json_option
def cache(clear: bool, as_json: bool) -> None:
    """Where networks that were read are kept, how many and how large; the least recently used go first.

    LOLAT_CACHE names another folder; LOLAT_CACHE=off keeps nothing. Example: lolat cache --clear
    """
    from lolat.readers.cache import Cache
    from lolat.readers.shipped import shipped_networks
    from lolat.units import plain, plural, quantity

    kept = Cache()
    networks, held_bytes = kept.held()
    if clear:
        kept.trim(0)
    folder, shipped = kept.folder and str(kept.folder), shipped_networks()
    if as_json:
        found = {"folder": folder, "networks": networks, "held_bytes": held_bytes}
        more = {"most_bytes": kept.most_bytes, "cleared": clear, "shipped": shipped}
        click.echo(json.dumps({**found, **more}))
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
