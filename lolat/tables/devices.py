"""The rows of one device in a table: times of two devices are never mixed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from lolat.errors import InputError, arg, argument_code
from lolat.hardware.card_names import device_key
from lolat.io.tables import Table
from lolat.units import shortened


def rows_of_devices(table: Table, devices: Collection[str] = (), argument: str = "name") -> Table:
    """The rows of `devices`, by the column `device`; all rows if there is no such column.

    `argument`: the name of `devices` in messages. InputError if these devices have no row, or if no device
    is named and the table has several.
    """
    cells = table.cells("device")
    known = {device_key(cell): cell for cell in cells if cell}
    wanted = {*map(device_key, devices)}
    if not known or (not devices and len(known) == 1):
        return table
    if not known.keys() & wanted:
        has = shortened(", ".join(known.values()))
        lacks = f", and none of {', '.join(devices)}" if devices else ""
        raise InputError(
            f"{table.source} has rows of {has}{lacks}; expected {arg(argument)}, a device of these",
            code=argument_code(argument),
        )
    kept = [i for i, cell in enumerate(cells) if cell and device_key(cell) in wanted]
    columns = [[column[i] for i in kept] for column in table.columns]
    return replace(table, columns=columns, lines=[table.lines[i] for i in kept])


def check_one_device(tables: Iterable[Table]) -> None:
    """Raise InputError for tables of several devices."""
    found: dict[str, str] = {}
    for table in tables:
        rows_of_devices(table)
        cells = table.cells("device")
        found |= {device_key(cell): f"{cell} ({table.source})" for cell in cells if cell}
    if len(found) > 1:
        has = shortened(", ".join(found.values()))
        raise InputError(
            f"tables of several devices: {has}; expected {arg('name')}, one of these", code="name"
        )
