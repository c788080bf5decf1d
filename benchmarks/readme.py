"""Writes the generated parts of README.md: what `make demo` prints, and the table of measured figures.

python -m benchmarks.readme
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from cgstate.backends.sim import SimBackend
from cgstate.bench.losses import beyond, missed_by, quicker
from cgstate.demo import job, show
from cgstate.demo.vocoder_sim import SimVocoder
from cgstate.lifecycle.tables import table_hash

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
EVIDENCE = ROOT / "docs" / "evidence" / "core-h200.json"
MEMORY = ROOT / "docs" / "evidence" / "memory-h200.json"
FUZZ = ROOT / "docs" / "evidence" / "fuzz-h200.json"
PEERS = ROOT / "docs" / "evidence" / "bench-h200.json"

FIGURES = {
    "lease_ns": ("a lease: acquire and release", "ns"),
    "lease_traced_ns": ("the same while a trace is recorded", "ns"),
    "replay_added_ns_10": ("`entry.replay()` over the raw `graph.replay()`, 10 kernels", "ns"),
    "replay_added_ns_100": ("the same, 100 kernels", "ns"),
    "replay_added_ns_1000": ("the same, 1,000 kernels", "ns"),
    "replay_ratio_1000": ("the same as a ratio, 1,000 kernels", "×"),
    "call_ratio": ("a component call over copy, replay and clone by hand (four small linears)", "×"),
    "demo_outputs": ("outputs of the demonstration compared with eager", ""),
    "demo_unequal": ("of them unequal", ""),
    "failure_cases": ("captures broken on purpose, in a pool of their own and in a shared one", ""),
    "failure_cases_clean": ("of them undone without a trace", ""),
}

MEMORY_FIGURES = {
    "shapes": ("model shapes estimated, then captured", ""),
    "shapes_within": ("of them between the estimate's bounds", ""),
    "worst_upper_over_actual": ("upper bound over what was held, at worst", "×"),
    "order_ratio": ("largest first over the best of 22 other orders of capture, at worst", "×"),
    "order_ratio_unnested_profiled": (
        "the same, after a profile, where no order by size is a good one",
        "×",
    ),
    "compact_saved_bytes_most": ("bytes saved by one block for the temporaries of a pool's first graph, at most", ""),
    "profile_share_many_graphs": ("the estimate's time over that of the captures, 128 graphs", "×"),
    "profile_share_model": ("the same, a decoder of 24 layers with 35 graphs", "×"),
    "profile_share_thorough": ("the same, every graph of it run", "×"),
    "profile_share_most": ("the same where it is most: toys whose graphs are few", "×"),
    "rounds": (
        "random rounds of capture, replay and eviction: each isolation, expandable segments or not, alone or beside others' graphs",
        "",
    ),
    "leaked_bytes": ("bytes left by them", ""),
    "shared_stream_saved_bytes": ("bytes saved by a graph that replays inside another's eager break and shares its stream", ""),
}

FUZZ_FIGURES = {
    "steps": ("random steps of captures, replays, evictions and failures on the device, judged by the model after each", ""),
    "compared": ("answers compared with eager meanwhile", ""),
    "violations": ("violations", ""),
    "leaked_bytes": ("bytes left", ""),
}

PEERS_FIGURES = {
    "call_over_raw": ("a component call over the bare replay of its graph, nothing copied in or out", "×"),
    "call_over_by_hand": ("over copy, replay and clone by hand", "×"),
    "call_over_make_graphed_callables": ("over `torch.cuda.make_graphed_callables`, which clones nothing", "×"),
    "call_over_reduce_overhead": ('over `torch.compile(mode="reduce-overhead")`, which clones nothing', "×"),
    "leased_call_over_make_graphed_callables": ("a leased call, which clones nothing either, over `make_graphed_callables`", "×"),
    "leased_call_over_reduce_overhead": ("over `reduce-overhead`", "×"),
    "replay_growth_1000_entries": ("a replay among 1,000 entries over one among 10", "×"),
    "traced_call_ratio": ("a component call that is traced, over one that is not", "×"),
    "checked_call_ratio": ("the same with every invariant checked", "×"),
}

TABLES = {PEERS: PEERS_FIGURES, EVIDENCE: FIGURES, MEMORY: MEMORY_FIGURES, FUZZ: FUZZ_FIGURES}
"""What README says of which evidence."""


def demo() -> str:
    """What the demonstration prints on the simulator; how long it took, and which simulated device it was, differ each time."""
    result = job.run(SimVocoder(SimBackend(), 0), seed=0, requests=200)
    text = io.StringIO()
    show.draw(result, Console(file=text, width=80, color_system=None, legacy_windows=False))
    lines = re.sub(r"sim:\d+", "sim:0", text.getvalue()).rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip() and not re.fullmatch(r"│ +[\d.]+ s +│", line.strip()))


def figures() -> str:
    """The tables of figures, from the evidence alone; those that are not measured yet are left out."""
    return "\n\n".join(
        "\n".join(_table(json.loads(path.read_text()), meanings)) for path, meanings in TABLES.items() if path.exists()
    )


def _table(evidence: dict[str, Any], meanings: dict[str, tuple[str, str]]) -> list[str]:
    stale = "" if evidence["table_hash"] == table_hash() else " **Stale: measured with other tables than today's.**"
    rows = []
    for name, (meaning, unit) in meanings.items():
        judged = evidence["bars"].get(name, {"bar": "", "holds": True})
        if name not in evidence["figures"]:  # a peer may be missing where the rest was measured; the evidence says why
            rows.append(f"| {meaning} | not run | |")
            continue
        value = evidence["figures"][name]
        shown = f"{value:.2f}" if unit == "×" else f"{value:,.0f}"
        missed = "" if judged["holds"] else f", **missed** by {missed_by(judged['bar'], value)}"
        rows.append(f"| {meaning} | {shown} {unit} | {judged['bar']}{missed} |".replace("  ", " "))
    place = f"{evidence['device']}, driver {evidence['driver']}, torch {evidence['torch']}"
    head = f"Measured once on {place}, {evidence['date'][:10]}, at commit {evidence['commit'][:9]}.{stale}"
    lost = [*beyond(evidence), *quicker(evidence)]
    return [
        head,
        "",
        "| what | measured | bar |",
        "|---|---|---|",
        *rows,
        *(["", "Where it loses; [in full](docs/peers.md):", "", *lost] if lost else []),
    ]


def source(text: str) -> str:
    """README with its generated parts made anew."""
    for name, body in {"demo": f"```\n{demo()}\n```", "figures": figures()}.items():
        begin, end = f"<!-- {name}: generated by python -m benchmarks.readme -->\n", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"README has no place for {name}")
        text = f"{before}{begin}{body}\n{end}{after}"
    return text


if __name__ == "__main__":
    README.write_text(source(README.read_text()))
