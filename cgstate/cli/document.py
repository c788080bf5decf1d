"""The one JSON document that a command prints with ``--json``."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping

import cgstate
from cgstate.lifecycle.tables import table_hash

SCHEMA = 1


def print_document(command: str, result: Mapping[str, object]) -> None:
    """Print the document on stdout, and nothing else."""
    document = {
        "schema": SCHEMA,
        "command": command,
        "cgstate": cgstate.__version__,
        "python": platform.python_version(),
        "table_hash": table_hash(),
        "result": result,
    }
    print(json.dumps(document, indent=2, default=str))
