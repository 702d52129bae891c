"""Input lines: expanded in place, numbered as promised, seeded by name, and refused together with file and line."""

import errno
import json
import os
from pathlib import Path

import pytest

from rollout_assets.collection.configs import (
    CollectCommandConfig,
    E2ERolloutCollectionConfig,
    RolloutCollectionConfig,
)
from rollout_assets.collection.inputs import collection_seed, numbered_requests, request_json
from rollout_assets.errors import ConfigError, InputsRefused
from tests.support.refusals import assert_names, refused

pytestmark = pytest.mark.quick

A, B, C = ({"sample_key": name, "agent_ref": {"name": "greedy"}} for name in "abc")


def rows_of(tmp_path: Path, lines, **changes):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    options = {"output_jsonl_fpath": tmp_path / "out.jsonl", "server_urls": ("http://x",)} | changes
    return list(numbered_requests(RolloutCollectionConfig(input_jsonl_fpath=path, **options)))


def keys(rows):
    return [(r.request.sample_key, r.request.task_index, r.request.rollout_index) for r in rows]


def test_lines_expand_in_place(tmp_path):
    rows = rows_of(tmp_path, [A, B, C], num_repeats=2)
    assert keys(rows) == [("a", 0, 0), ("a", 0, 1), ("b", 1, 0), ("b", 1, 1), ("c", 2, 0), ("c", 2, 1)]
    assert [r.line for r in rows] == [1, 1, 2, 2, 3, 3]


def test_a_task_is_a_root_whoever_runs_it(tmp_path):
    lines = [A, B, A | {"agent_ref": {"name": "random"}}, A | {"target": 1}, A | {"seed": 9}]
    assert keys(rows_of(tmp_path, lines)) == [("a", 0, 0), ("b", 1, 0), ("a", 0, 0), ("a", 2, 0), ("a", 0, 1)]


def test_rollouts_are_counted_per_agent_and_share_their_seeds(tmp_path):
    lines = [A, A | {"agent_ref": {"name": "random"}}, B]
    rows = rows_of(tmp_path, lines, num_repeats={"random": 4, "_default": 2}, num_repeats_add_seed=True)
    seeds = {(r.request.agent_name, r.request.task_index, r.request.rollout_index): r.request.seed for r in rows}
    assert sorted(seeds) == [
        *(("greedy", task, rollout) for task in (0, 1) for rollout in (0, 1)),
        *(("random", 0, rollout) for rollout in range(4)),
    ]
    for rollout in (0, 1):
        assert seeds["greedy", 0, rollout] == seeds["random", 0, rollout] != seeds["greedy", 1, rollout]
    assert len(set(seeds.values())) == 6


def test_an_agent_that_no_line_has_is_refused_with_those_there_are(tmp_path):
    lines = [A, A | {"agent_ref": {"name": "random"}}, "{oops beyond the limit\n"]
    with refused(ConfigError, "num_repeats", "'gready'", tmp_path / "rows.jsonl", "greedy, random"):
        rows_of(tmp_path, lines[:2], num_repeats={"gready": 3, "_default": 1})
    with refused(ConfigError, "num_repeats", "'a', 'b'"):
        rows_of(tmp_path, lines, limit=1, num_repeats={"a": 3, "b": 2, "greedy": 1})
    assert len(rows_of(tmp_path, lines, limit=1, num_repeats={"random": 3, "greedy": 2})) == 2


def test_none_means_the_default(tmp_path):
    fields = set(RolloutCollectionConfig.model_fields) - {"input_jsonl_fpath", "output_jsonl_fpath", "server_urls"}
    assert keys(rows_of(tmp_path, [A, B], **dict.fromkeys(fields))) == [("a", 0, 0), ("b", 1, 0)]
    required = {"input_jsonl_fpath": "i.jsonl", "output_jsonl_fpath": "o.jsonl", "server_urls": ("http://x",)}
    assert RolloutCollectionConfig(**dict.fromkeys(fields), **required) == RolloutCollectionConfig(**required)
    with refused(ConfigError, "output_jsonl_fpath"):
        RolloutCollectionConfig(**required | {"output_jsonl_fpath": None})
    optional = set(CollectCommandConfig.model_fields) - {"output_jsonl_fpath", "campaign"}
    given = {"output_jsonl_fpath": "o.jsonl", "campaign": "demo"}
    assert CollectCommandConfig(**dict.fromkeys(optional), **given) == CollectCommandConfig(**given)


def test_null_in_a_line_means_the_template_or_the_default(tmp_path):
    empty = dict.fromkeys(("target", "seed", "params", "include", "recipe", "source_row", "_task_index"))
    (row,) = rows_of(tmp_path, [A | empty], prompt_config={"seed": 3}, responses_create_params={"horizon": None})
    (plain,) = rows_of(tmp_path, [A | {"seed": 3}])
    assert row.request == plain.request
    (row,) = rows_of(tmp_path, [A | {"params": {"horizon": 2, "branch": None}}])
    assert row.request.params.model_dump(exclude_none=True) == {"horizon": 2}


def test_a_view_budget_reaches_requests_and_excludes_a_store(tmp_path):
    budget = {"max_views_scored": 40}
    (row,) = rows_of(tmp_path, [A], responses_create_params=budget)
    assert row.request.params.max_views_scored == 40
    with refused(InputsRefused, "rows.jsonl:1", "max_views_scored", "store_dir"):
        rows_of(tmp_path, [A | {"params": budget}], store_dir=tmp_path / "x.zarr", campaign="demo")


def test_given_task_indices_are_kept_and_others_go_around_them(tmp_path):
    lines = [A, B | {"_task_index": 0}, C | {"_task_index": 7}, {**A, "target": 2}]
    assert keys(rows_of(tmp_path, lines)) == [("a", 1, 0), ("b", 0, 0), ("c", 7, 0), ("a", 2, 0)]


def test_repeats_may_differ_by_agent(tmp_path):
    lines = [A, A | {"agent_ref": {"name": "random"}}, {"sample_key": "b", "recipe": "other"}]
    rows = rows_of(tmp_path, lines, num_repeats={"random": 3, "_default": 1})
    assert [r.request.agent_name for r in rows] == ["greedy", "random", "random", "random", "other"]
    with refused(InputsRefused, "rows.jsonl:3", "num_repeats", "'other'"):
        rows_of(tmp_path, lines, num_repeats={"random": 3, "greedy": 1})


def test_seeds_are_derived_from_run_task_and_rollout(tmp_path):
    rows = rows_of(tmp_path, [A | {"seed": 1}, B], num_repeats=2, num_repeats_add_seed=True, run_seed=4)
    seeds = [r.request.seed for r in rows]
    assert seeds == [collection_seed(4, task, rollout) for task in (0, 1) for rollout in (0, 1)]
    assert len(set(seeds)) == 4 and max(seeds) < 2**63
    assert [r.request.seed for r in rows_of(tmp_path, [A | {"seed": 1}, B], num_repeats=2)] == [1, 1, None, None]


def test_parameters_go_over_a_line_and_a_template_under_it(tmp_path):
    template = {"params": {"horizon": 1, "temperature": 2.0}, "seed": 3, "agent_ref": {"name": "t"}, "source_row": 5}
    (tmp_path / "t.toml").write_text('seed = 3\nagent_ref = {name = "t"}\nsource_row = 5\nparams = {horizon = 1}\n')
    lines = [{"sample_key": "a", "params": {"horizon": 7, "beam_width": 2}}, {"recipe": "mine", "seed": 8}]
    first, second = rows_of(tmp_path, lines, prompt_config=template, responses_create_params={"beam_width": 9})
    assert first.request.params.model_dump(exclude_none=True) == {"horizon": 7, "temperature": 2.0, "beam_width": 9}
    assert (first.request.sample_key, first.request.source_row, first.request.agent_name, first.request.seed) == (
        "a",
        None,
        "t",
        3,
    )
    assert (second.request.source_row, second.request.agent_name, second.request.seed) == (5, "mine", 8)
    from_file = rows_of(tmp_path, lines, prompt_config=tmp_path / "t.toml")
    assert from_file[0].request.params.horizon == 7 and from_file[1].request.params.horizon == 1


def test_limit_counts_lines_and_agent_name_is_for_lines_without(tmp_path):
    rows = rows_of(tmp_path, [A, "\n", {"sample_key": "b"}, C], limit=2, num_repeats=2, agent_name="mine")
    assert [r.request.agent_name for r in rows] == ["greedy", "greedy", "mine", "mine"]


def test_all_bad_lines_are_reported_together_with_file_and_line(tmp_path):
    lines = [A, "{oops\n", {"sample_key": "b"}, [1], A | {"seed": -1, "colour": "red"}, {"agent_ref": {"name": "x"}}]
    lines += [A | {"params": {"horizon": 0}}]
    with refused(InputsRefused, "rows.jsonl: 6 lines") as caught:  # line 5 has two problems
        rows_of(tmp_path, lines)
    expected = (
        ("rows.jsonl:2: ", "JSON"),
        ("rows.jsonl:3: ", "agent_ref", "recipe"),
        ("rows.jsonl:4: ", "JSON object", "list"),
        ("rows.jsonl:5: seed: ",),
        ("rows.jsonl:5: colour: ",),
        ("rows.jsonl:6: ", "sample_key", "source_row"),
        ("rows.jsonl:7: params.horizon: ",),
    )
    assert len(caught.value.problems) == len(expected)
    for place, *names in expected:
        assert_names(next(problem for problem in caught.value.problems if place in problem), *names)


def test_a_key_given_twice_is_refused_with_both_lines(tmp_path):
    twice = A | {"_task_index": 3, "_rollout_index": 1}
    with refused(InputsRefused, "rows.jsonl:3", "_task_index 3 _rollout_index 1", "line 1"):
        rows_of(tmp_path, [twice, B, twice])
    with refused(InputsRefused, "rows.jsonl:2", "_task_index 0 _rollout_index 0", "line 1"):
        rows_of(tmp_path, [A, A | {"_rollout_index": 0}])
    with refused(InputsRefused, "rows.jsonl:1", "_rollout_index 1", 2):
        rows_of(tmp_path, [twice], num_repeats=2)


def test_rows_asked_for_a_store_carry_their_record(tmp_path):
    rows = rows_of(tmp_path, [A], store_dir=tmp_path / "x.zarr", campaign="demo")
    assert rows[0].request.include == ("record",)
    assert json.loads(request_json(rows[0].request)) == {
        "sample_key": "a",
        "agent_ref": {"name": "greedy"},
        "include": ["record"],
        "_task_index": 0,
        "_rollout_index": 0,
    }


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"colour": 1}, ["colour"]),
        ({"num_samples_in_parallel": 0}, ["num_samples_in_parallel", "1, got 0"]),
        ({"output_jsonl_fpath": "out.json"}, ["output_jsonl_fpath", ".jsonl, got out.json"]),
        ({"responses_create_params": {"horizont": 2}}, ["responses_create_params: horizont"]),
        ({"server_urls": ()}, ["server_urls", "campaign"]),
        ({"server_urls": ("localhost:80",)}, ["http://", "https://", "'localhost:80'"]),
        ({"store_dir": "s.zarr"}, ["store_dir", "campaign"]),
        ({"store_dir": "s.zarr", "campaign": "demo", "num_repeats": 2}, ["num_repeats", 2]),
        ({"retry_failed": True}, ["retry_failed", "resume_from_cache"]),
        ({"prompt_config": {"colour": 1}}, ["prompt_config", "colour"]),
        ({"prompt_config": "nowhere.json"}, ["nowhere.json: ", os.strerror(errno.ENOENT)]),
        ({"input_jsonl_fpath": "nowhere.jsonl"}, ["nowhere.jsonl: ", os.strerror(errno.ENOENT)]),
    ],
)
def test_a_configuration_that_cannot_be_used_names_the_key(tmp_path, changes, names):
    given = {"input_jsonl_fpath": tmp_path / "empty.jsonl", "output_jsonl_fpath": tmp_path / "o.jsonl"}
    given |= {"server_urls": ("http://x",)} | changes
    with refused(ConfigError, *names):
        list(numbered_requests(RolloutCollectionConfig(**given)))


def test_an_empty_file_is_no_input(tmp_path):
    with refused(ConfigError, tmp_path / "rows.jsonl", "--write-requests"):
        rows_of(tmp_path, ["\n"])


def test_uploading_without_the_package_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_assets.collection.configs.find_spec", lambda _: None)
    config = E2ERolloutCollectionConfig(
        output_jsonl_fpath=tmp_path / "o.jsonl", campaign="demo", upload_rollouts_to_wandb=True
    )
    with refused(ConfigError, "upload_rollouts_to_wandb", "'wandb'"):
        config.refuse_before_any_work()


def test_files_of_a_collection_lie_beside_its_output(tmp_path):
    config = E2ERolloutCollectionConfig(output_jsonl_fpath=tmp_path / "run.v2.jsonl", campaign="demo")
    assert config.materialized_jsonl_fpath == tmp_path / "run.v2_materialized_inputs.jsonl"
    assert config.failures_jsonl_fpath == tmp_path / "run.v2_failures.jsonl"
    assert config.aggregate_metrics_fpath == tmp_path / "run.v2_aggregate_metrics.json"
