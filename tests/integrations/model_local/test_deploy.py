"""Deploy files: strict data, from the top of the file or from one of its stages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cgstate
from cgstate.integrations.model_local import read_deploy
from cgstate.integrations.model_local.deploy import LIMIT

pytest.importorskip("yaml")

TOP = """
model_local_cudagraph:
  vocoder: {max_extra_graphs: 2}
"""
STAGES = """
stages:
  - stage_id: 0
  - stage_id: 3
    model_local_cudagraph:
      vocoder:
"""
TWO = (
    STAGES
    + """  - model_local_cudagraph: {talker: {}}
"""
)


def written(path: Path, text: str) -> Path:
    file = path / "deploy.yaml"
    file.write_text(text)
    return file


def test_the_mapping_is_at_the_top_or_in_the_one_stage_that_has_it(tmp_path: Path) -> None:
    assert read_deploy(written(tmp_path, TOP)) == {"vocoder": {"max_extra_graphs": 2}}
    assert read_deploy(written(tmp_path, STAGES)) == {"vocoder": None}
    assert read_deploy(written(tmp_path, STAGES), stage=3) == {"vocoder": None}
    assert read_deploy(written(tmp_path, STAGES), stage=0) is None
    assert read_deploy(written(tmp_path, TWO), stage=2) == {"talker": {}}  # a stage without an id has its place
    assert read_deploy(str(written(tmp_path, "stages: []"))) is None


BOMB = "a0: &a0 [lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)) + "{}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold a mapping, not NoneType"),
        ("- 1", "must hold a mapping, not list"),
        ("a: [", "is no YAML that can be read"),
        ("[" * 1000, "is no YAML that can be read"),
        ("a: 1\na: 2", "key 'a' is given twice"),
        ("model_local_cudagraph: {vocoder: {max_extra_graphs: 1, max_extra_graphs: 2}}", "key 'max_extra_graphs' is given twice"),
        (BOMB.format("stages: *a8"), "with its aliases written out it is larger than"),
        (BOMB.format("model_local_cudagraph: {<<: *a8}"), "with its aliases written out it is larger than"),
        ("model_local_cudagraph: &a {vocoder: *a}", "or contains itself"),
        ("model_local_cudagraph: 3", "model_local_cudagraph must map component ids to their options, not 3"),
        ("model_local_cudagraph: !!python/object/apply:os.getcwd []", "is no YAML that can be read"),
        ("stages: 3", "stages must be a list, not 3"),
        ("stages: [3]", r"stages\[0\] must be a mapping, not 3"),
        ("stages: [{stage_id: a}]", r"stage_id of stages\[0\] must be a number of its own, not 'a'"),
        ("stages: [{stage_id: 1}, {stage_id: 1}]", r"stage_id of stages\[1\] must be a number of its own, not 1"),
        ("stages: [{model_local_cudagraph: [1]}]", r"stage 0: model_local_cudagraph must map .*not \[1\]"),
        (TWO, r"stages \[2, 3\] have model_local_cudagraph; say which one is meant"),
        (TOP + STAGES, r"given at the top and in stages \[3\]; keep one of them"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(cgstate.ConfigError, match=message):
        read_deploy(written(tmp_path, text))


def test_aliases_may_repeat_what_is_small(tmp_path: Path) -> None:
    text = "model_local_cudagraph: {vocoder: &same {max_extra_graphs: 1}, talker: *same}"
    assert read_deploy(written(tmp_path, text)) == {name: {"max_extra_graphs": 1} for name in ("vocoder", "talker")}


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(cgstate.ConfigError, match=r"nowhere\.yaml cannot be read: No such file"):
        read_deploy(tmp_path / "nowhere.yaml")
    with pytest.raises(cgstate.ConfigError, match=r"has no stage 7; it has \[0, 3\]"):
        read_deploy(written(tmp_path, STAGES), stage=7)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(cgstate.ConfigError, match="is larger than"):
        read_deploy(written(tmp_path, "a: 1\n" + "#" * LIMIT))


def test_without_pyyaml_it_is_said_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(cgstate.ConfigError, match="reading a deploy file needs PyYAML: pip install pyyaml"):
        read_deploy(written(tmp_path, TOP))


def test_a_merged_key_may_be_given_again(tmp_path: Path) -> None:
    text = """
base: &base {max_extra_graphs: 1, admit_after: 2}
model_local_cudagraph:
  vocoder: {<<: *base, max_extra_graphs: 3}
"""
    assert read_deploy(written(tmp_path, text)) == {"vocoder": {"max_extra_graphs": 3, "admit_after": 2}}
