"""What a user of vLLM may say. Needs no vLLM."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import cgstate.integrations.vllm as adapter
from cgstate.errors import ConfigError
from cgstate.integrations.vllm.options import Options, parse, switched_on


@pytest.mark.parametrize(("value", "on"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_the_switch(value: str | None, on: bool) -> None:
    assert switched_on({} if value is None else {"CGSTATE_VLLM": value}) is on


@pytest.mark.parametrize("value", ["true", "yes", "2", "1 "])
def test_a_switch_that_means_nothing_is_refused_with_what_is_allowed(value: str) -> None:
    with pytest.raises(ConfigError, match=f"CGSTATE_VLLM must be '0' or '1', not '{value}'"):
        switched_on({"CGSTATE_VLLM": value})


@pytest.mark.parametrize("given", [None, {}, {"other": {"trace": 3}}, {"cgstate": {}}])
def test_without_options_all_have_their_defaults(given: Any) -> None:
    assert parse(given) == Options(enabled=True, check=False, trace=None)


def test_options_are_taken_as_given() -> None:
    given = {"enabled": False, "check": True, "trace": "run.jsonl"}
    assert parse({"cgstate": given}) == Options(enabled=False, check=True, trace="run.jsonl")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (True, r"additional_config\['cgstate'\] must be a mapping, not True"),
        ({"traec": "x"}, r"unknown key 'traec'; it may have \['check', 'enabled', 'trace'\]"),
        ({"check": 1}, r"check in additional_config\['cgstate'\] must be True or False, not 1"),
        ({"enabled": "no"}, r"enabled .* must be True or False, not 'no'"),
        ({"trace": True}, r"trace .* must be a file name or None, not True"),
        ({"trace": ""}, r"trace .* must be a file name or None, not ''"),
    ],
)
def test_a_bad_option_is_refused_by_its_name_with_what_is_allowed(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse({"cgstate": given})


def test_where_it_is_off_neither_vllm_nor_torch_is_imported() -> None:
    code = (
        "import sys, cgstate.integrations.vllm as adapter; adapter.register(); adapter.uninstall(); "
        "assert adapter.report() == () and adapter.estimate() is None; "
        "sys.exit(not {'vllm', 'torch'}.isdisjoint(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "."}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_release_that_is_not_supported_says_what_is_missing() -> None:
    error = adapter.UnsupportedRelease("9.9", ["module.Name", "other"])
    assert (error.version, error.missing) == ("9.9", ("module.Name", "other"))
    assert "vLLM 9.9" in str(error)
    assert "module.Name, other not found" in str(error)
