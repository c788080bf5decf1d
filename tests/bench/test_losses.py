"""Where cgstate loses is said by the pages themselves, from the evidence: no loss is left out, and no other is told."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import readme
from cgstate.bench import losses
from cgstate.bench.figures import COMPONENT, LEASED, figure
from cgstate.lifecycle.tables import table_hash
from docs.pages import evidence, peers

SHAPES = ((1, 1), (4, 1))
RATIOS = {
    (COMPONENT, "slow one"): (0.8, 0.5),
    (COMPONENT, "quick one"): (1.25, 1.5),
    (COMPONENT, "half-quick one"): (0.9, 1.1),
    (LEASED, COMPONENT): (0.7, 1.0),
    (LEASED, "slow one"): (0.5, 0.7),
}


def measured() -> dict[str, Any]:
    """An evidence file: the call misses its bar over the slow one, the leased call reaches it for the first shape alone."""
    names = (COMPONENT, LEASED, "slow one", "quick one", "half-quick one")
    head = dict.fromkeys(("command", "device", "driver", "torch", "python", "commit"), "?")
    figures = {
        figure(subject, peer, *shape): ratio
        for (subject, peer), both in RATIOS.items()
        for shape, ratio in zip(SHAPES, both, strict=True)
    }
    return {
        **head,
        "date": "2026-11-30T00:00:00",
        "table_hash": table_hash(),
        "pass": False,
        "figures": figures,
        "bars": {
            "call_over_slow_one": {"bar": "<= 0.6", "holds": False},
            "leased_call_over_slow_one": {"bar": "<= 0.6", "holds": True},
            "nowhere": {"bar": ">= 3", "holds": False},
        },
        "rows": [
            *(
                {"part": "peers", "what": name, "does": f"as {name}", "inputs": shape[0], "outputs": shape[1]}
                for shape in SHAPES
                for name in names
            ),
            {"part": "scaling", "what": "10 entries"},
        ],
    }


@pytest.mark.parametrize(
    ("bar", "value", "said"),
    [
        ("<= 0.6", 0.798, "33 %"),
        ("<= 1.15", 1.1517, "0.15 %"),
        (">= 20000", 15000, "25 %"),
        ("<= 2", 200, "9,900 %"),
        ("= 0", 3, "3"),
        ("= 4", 3, "25 %"),
    ],
)
def test_a_bar_is_missed_by_a_share_of_it(bar: str, value: float, said: str) -> None:
    assert losses.missed_by(bar, value) == said


def test_every_missed_bar_is_told_with_how_far_and_none_that_holds() -> None:
    assert list(losses.missed(measured())) == [
        "- `call_over_slow_one` is 0.800, and `<= 0.6` was asked: **missed** by 33 %.",
        "- `nowhere` was not measured, and `>= 3` was asked: **missed**.",
    ]


def test_a_bar_that_holds_for_one_shape_and_not_for_another_is_told() -> None:
    assert list(losses.beyond(measured())) == [
        "- The bar `<= 0.6` over `slow one` is asked of 1 in, 1 out alone."
        " A call of `component, leased` is beyond it with 4 in, 1 out (0.70).",
    ]


def test_every_peer_that_is_quicker_is_told_with_how_much_and_for_what() -> None:
    assert list(losses.quicker(measured())) == [
        "- A call of `component` takes 1.25 to 1.50 × as long as one of `quick one` whatever the inputs and outputs.",
        "- A call of `component` takes 1.10 × as long as one of `half-quick one` with 4 in, 1 out.",
    ]


def test_the_page_shows_every_ratio_and_every_loss() -> None:
    text = "\n".join(peers._lines(measured()))
    assert "| `quick one` | **1.25** | **1.50** |" in text
    assert "| `half-quick one` | 0.90 | **1.10** |" in text
    assert "| `slow one` | 0.50 | 0.70 |" in text  # of the leased call
    assert text.endswith("\n".join([*losses.missed(measured()), *losses.beyond(measured()), *losses.quicker(measured())]))


def test_the_page_says_what_was_not_run() -> None:
    document = measured()
    del document["figures"]["call_over_quick_one_4_in_1_out"]
    document["rows"] = [row for row in document["rows"] if row["what"] != LEASED]
    text = "\n".join(peers._lines(document))
    assert "| `quick one` | **1.25** | not run |" in text
    assert "## A call of `component, leased` over theirs\n\nNot measured in this evidence.\n" in text


def test_the_page_of_a_pass_says_that_no_bar_was_missed() -> None:
    document = measured() | {"pass": True, "bars": {}}
    assert "## Where it loses\n\n- No bar was missed.\n- A call of" in "\n".join(peers._lines(document))


def test_the_evidence_says_how_far_a_bar_was_missed_and_what_was_not_measured() -> None:
    lines = list(evidence._file("some", measured()))
    assert "| `call_over_slow_one` | 0.800 | `<= 0.6` | **missed** by 33 % |" in lines
    assert "| `leased_call_over_slow_one` | 0.500 | `<= 0.6` | holds |" in lines
    assert "| `nowhere` | not measured | `>= 3` | **missed** |" in lines


def test_readme_says_it_below_its_table_and_only_of_what_was_compared() -> None:
    table = readme._table(measured(), {"call_over_slow_one": ("over the slow one", "×")})
    assert "| over the slow one | 0.80 × | <= 0.6, **missed** by 33 % |" in table
    assert table[-3:] == [*losses.beyond(measured()), *losses.quicker(measured())]
    assert table[-5:-3] == ["Where it loses; [in full](docs/peers.md):", ""]
    alone = measured() | {"rows": []}
    assert readme._table(alone, {})[-1] == "|---|---|---|"
