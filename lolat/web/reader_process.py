"""The process that reads networks: requests as lines of JSON on stdin, answers on stdout.

Keras is loaded here and not in the server, so that the page is there at once; and a file that crashes a
framework, or eats memory, ends this process alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from lolat.errors import LolatError

MEMORY_BYTES = 4 * 2**30
"""What reading may take on top of what the frameworks take themselves."""


def main() -> None:
    """Answer requests until stdin ends, which it does when the server does."""
    # What frameworks print must not come between the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _prepare()
    _tell(out, {"ready": True})
    for line in sys.stdin:
        _tell(out, answer(json.loads(line)))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"graph": ...} of the network that is asked for, or {"error": one line}."""
    from lolat.readers import read

    try:
        return {"graph": read(request["network"], tuple(request["size"])).to_dict()}
    except LolatError as error:
        return {"error": str(error)}
    except MemoryError:
        return {
            "error": f"reading it needs more than {MEMORY_BYTES / 2**30:.0f} GiB of memory; expected a "
            "network, whose weights are never loaded: is the file damaged?"
        }
    except RecursionError:
        return {"error": "it is nested too deeply to be read; expected a network's file"}
    except Exception as error:  # what a damaged file makes a framework raise, whatever it is
        return {"error": f"it cannot be read ({type(error).__name__}); expected a network's file"}


def _prepare() -> None:
    """Load what takes long, then set the limit."""
    from lolat.readers.keras import import_keras

    with contextlib.suppress(LolatError):  # without Keras the error is the answer to who needs it
        import_keras()
    with contextlib.suppress(
        ImportError, OSError, ValueError, IndexError
    ):  # where there is none of it
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES,) * 2)


def _tell(out: Any, document: dict[str, Any]) -> None:
    out.write(json.dumps(document) + "\n")
    out.flush()
