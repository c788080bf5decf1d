"""Runs TLC in a directory of its own, and says what it found in the words of the tables."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from pathlib import Path

from cgstate.errors import ConfigError
from cgstate.spec.tla import LIVENESS
from cgstate.spec.tools import find_jar, find_java


class Verdict(Enum):
    """How a run ended."""

    holds = auto()
    violated = auto()
    rejected = auto()
    limit = auto()


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One state of a counterexample.

    Attributes:
        action: What led to it; empty for the first state, ``back to N`` or ``stuttering`` where a liveness counterexample closes.
        changed: Variables that differ from the state before, with both values; for the first state nothing.
    """

    action: str
    changed: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run found.

    Attributes:
        verdict: How it ended.
        property: Name of what was violated, where one was.
        message: TLC's own words, where they say more.
        trace: The counterexample.
        states: Distinct states.
        generated: Steps taken, the first state included.
        depth: Distance of the farthest state from the first, counting states.
        seconds: How long TLC took, by its own account of wall time.
    """

    verdict: Verdict
    property: str = ""
    message: str = ""
    trace: tuple[TraceStep, ...] = ()
    states: int = 0
    generated: int = 0
    depth: int = 0
    seconds: float = 0.0


Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How TLC is run.

    Attributes:
        workers: Threads.
        heap_mb: Java's heap, MiB.
        limit_s: Give up after so many seconds; None: never.
        dump: Write the state graph here, in DOT, with action labels.
        log: Write TLC's output here.
    """

    workers: int = 2
    heap_mb: int = 2048
    limit_s: float | None = None
    dump: Path | None = None
    log: Path | None = None


def check(files: Mapping[str, str], module: str, options: Options, tick: Tick = lambda _: None) -> Result:
    """Check a module.

    Args:
        files: Texts by file name: the module, its configuration.
        module: Name of the module; the configuration has the same.
        options: How.
        tick: Told now and then how far TLC is.

    Raises:
        ToolMissing: Java or TLC is missing.
    """
    java, jar = find_java(), find_jar()
    with tempfile.TemporaryDirectory(prefix="cgstate-tlc-") as name:
        directory = Path(name)
        for file, text in files.items():
            (directory / file).write_text(text)
        for made in ("states", "tmp"):
            (directory / made).mkdir()
        command = [
            java,
            f"-Xmx{options.heap_mb}m",
            f"-Djava.io.tmpdir={directory / 'tmp'}",
            "-XX:+UseParallelGC",
            *("-cp", str(jar), "tlc2.TLC", "-tool", "-deadlock"),
            *("-workers", str(options.workers)),
            *("-metadir", str(directory / "states")),
            *(("-dump", "dot,actionlabels", str(directory / "graph")) if options.dump else ()),
            *("-config", f"{module}.cfg", f"{module}.tla"),
        ]
        report = _Report()
        with _running(command, directory, options.limit_s) as (process, expired):
            assert process.stdout is not None
            log = options.log.open("w", buffering=1) if options.log else None
            try:
                for line in process.stdout:
                    if log:
                        log.write(line)
                    report.read(line.rstrip("\n"), tick)
            finally:
                if log:
                    log.close()
            code = process.wait()
        if options.dump and (directory / "graph.dot").exists():
            shutil.copyfile(directory / "graph.dot", options.dump)
        return report.result(code, expired=expired.is_set())


@contextmanager
def _running(
    command: Sequence[str], directory: Path, limit_s: float | None
) -> Iterator[tuple[subprocess.Popen[str], threading.Event]]:
    """The process, and whether its time ran out; it is ended in any case."""
    expired = threading.Event()
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def expire() -> None:
        expired.set()
        process.kill()

    timer = threading.Timer(limit_s, expire) if limit_s is not None else None
    try:
        if timer:
            timer.start()
        yield process, expired
    finally:
        if timer:
            timer.cancel()
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_files(cfg: Path) -> tuple[dict[str, str], str]:
    """A configuration of the user's and the modules beside it; and the name of its module.

    Raises:
        ConfigError: it cannot be read, or there is no module of its name.
    """
    module = cfg.with_suffix(".tla")
    if not module.is_file():
        raise ConfigError(f"{cfg}: there is no module {module.name} beside it")
    try:
        files = {path.name: path.read_text() for path in [cfg, *sorted(cfg.parent.glob("*.tla"))]}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{cfg}: {error}") from error
    return files, cfg.stem


# -- what TLC says ------------------------------------------------------------------------------------------------------

START = re.compile(r"@!@!@STARTMSG (\d+):(\d+) @!@!@")
STEP = re.compile(r"\d+: <(\w+)")
VARIABLE = re.compile(r"^(?:/\\ )?(\w+) = (.*)$", re.MULTILINE)
NAMED = re.compile(r"(?:[Ii]nvariant|[Pp]roperty|properties) (\w+)")
MESSAGE = 400
"""The most characters of TLC's own words that are passed on."""
DIGITS = r"(\d+)"
CHATTER = ("Parsing file", "Semantic processing", "Picked up")
"""How lines begin that say nothing."""


class _Code(IntEnum):
    """Messages of TLC's tool mode."""

    back_to = 2122
    finished = 2186
    depth = 2194
    stats = 2199
    progress = 2200
    temporal = 2116
    state = 2217
    stuttering = 2218


VIOLATIONS = frozenset({2107, 2110, 2112, 2116})
"""Messages that name what is violated."""
ERRORS = (1, 2)
"""Severities of messages that say why there is no verdict."""

ENDS = {0: Verdict.holds, **dict.fromkeys((11, 12, 13), Verdict.violated), **dict.fromkeys((150, 151), Verdict.rejected)}
"""What TLC's exit codes mean; all others: it did not get to the end."""


@dataclass
class _Report:
    """Reads TLC's messages one by one."""

    code: int = 0
    severity: int = 0
    lines: list[str] = field(default_factory=list)
    violated: str = ""
    errors: list[str] = field(default_factory=list)
    unwrapped: list[str] = field(default_factory=list)
    trace: list[TraceStep] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    states: int = 0
    generated: int = 0
    depth: int = 0
    seconds: float = 0.0

    def read(self, line: str, tick: Tick) -> None:
        """One line of output."""
        start = START.fullmatch(line)
        if start:
            self.code, self.severity, self.lines = int(start[1]), int(start[2]), []
        elif line.startswith("@!@!@ENDMSG"):
            self.message("\n".join(self.lines), tick)
            self.code = 0
        elif self.code:
            self.lines.append(line)
        elif line.strip() and not line.startswith(CHATTER):
            self.unwrapped.append(line)

    def message(self, text: str, tick: Tick) -> None:
        """One whole message."""
        match self.code:
            case _Code.stats | _Code.progress:
                self.generated = _number(r"([\d,]+) states generated", text)
                self.states = _number(r"([\d,]+) distinct states found", text)
                tick(f"{self.states:,} states")
            case _Code.depth:
                self.depth = _number(r"search is ([\d,]+)", text)
            case _Code.finished:
                self.seconds = _number(r"(\d+)ms", text) / 1000
            case _Code.state:
                self.state(text)
            case _Code.back_to:
                self.trace.append(TraceStep(f"back to state {_number(DIGITS, text)}", {}))
            case _Code.stuttering:
                self.trace.append(TraceStep("nothing more happens", {}))
            case code if code in VIOLATIONS:
                named = NAMED.search(text)
                self.violated = LIVENESS if code == _Code.temporal or named is None else named[1]
            case _ if self.severity in ERRORS:
                self.errors.append(text)

    def state(self, text: str) -> None:
        """One state of a counterexample."""
        step = STEP.match(text)
        values = {name: value.strip('"') for name, value in VARIABLE.findall(text)}
        changed = {name: (self.values[name], new) for name, new in values.items() if self.values.get(name, new) != new}
        self.trace.append(TraceStep(step[1] if step and self.trace else "", changed))
        self.values = values

    def result(self, code: int, *, expired: bool) -> Result:
        """What it all means."""
        verdict = Verdict.limit if expired else ENDS.get(code, Verdict.limit)
        message = ""
        if verdict in (Verdict.rejected, Verdict.limit) and not expired:
            message = " ".join(" ".join([*self.errors, *self.unwrapped]).split())[:MESSAGE]
        return Result(verdict, self.violated, message, tuple(self.trace), self.states, self.generated, self.depth, self.seconds)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1].replace(",", "")) if found else 0
