"""Continuing a collection that stopped: only if nothing that its results depend on has changed.

``<stem>_run.json`` holds the configuration, what the agents run, and the digest of the materialized
requests, which lie beside it. What cannot change a result (servers, parallelism, deadlines) may change between runs.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rollout_assets.collection.configs import RolloutCollectionConfig
from rollout_assets.collection.inputs import (
    NumberedRequest,
    numbered_requests,
    read_requests,
    read_template,
    request_json,
)
from rollout_assets.collection.result_files import done_keys, drop_torn_line, named
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import ResultsRefused, ResumeRefused
from rollout_assets.files import publish_json, publish_path, scratch_path
from rollout_assets.metrics.columns import RolloutId

RUN_VERSION = 1
_SHOWN = 5


class RunFacts(BaseModel):
    """What the results of a collection depend on. ``store_manifest`` is set just before its store is published."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = RUN_VERSION
    config: dict[str, Any]
    agents: dict[str, Any]
    rows: int
    rows_sha256: str
    store_manifest: str | None = None

    def publish(self, path: Path) -> None:
        """Write the facts, whole or not at all."""
        publish_json(path, self.model_dump(mode="json"))


def materialize(config: RolloutCollectionConfig, identity: Mapping[str, Any]) -> RunFacts:
    """Write every request of a new collection, then the facts it is resumed by; both whole or not at all."""
    path = config.materialized_jsonl_fpath
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, count = hashlib.sha256(), 0
    scratch = scratch_path(path)
    requests = numbered_requests(config)
    with scratch.open("wb") as stream:
        for numbered in requests:
            line = request_json(numbered.request)
            digest.update(line)
            stream.write(line)
            count += 1
    publish_path(scratch, path)
    facts = RunFacts(config=config_facts(config), agents=dict(identity), rows=count, rows_sha256=digest.hexdigest())
    facts.publish(config.run_fpath)
    return facts


def config_facts(config: RolloutCollectionConfig) -> dict[str, Any]:
    """The part of a configuration that decides what is asked, as plain JSON values."""
    facts = {
        "agent_name": config.agent_name,
        "limit": config.limit,
        "num_repeats": config.num_repeats,
        "num_repeats_add_seed": config.num_repeats_add_seed,
        "prompt_config": dict(read_template(config.prompt_config)),
        "responses_create_params": config.responses_create_params,
        "run_seed": config.run_seed,
        "store_dir": None if config.store_dir is None else str(config.store_dir.resolve()),
    }
    return json.loads(json.dumps(facts))


def read_facts(path: Path) -> RunFacts:
    """The facts of an earlier run."""
    try:
        return RunFacts.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ResumeRefused(
            f"{path}: does not exist, so nothing says what the results beside it depend on; "
            f"remove them to start again, or choose another output"
        ) from None
    except ValidationError as error:
        raise ResumeRefused(f"{path}: not what a collection wrote: {problems_text(error)}") from None


def refuse_changes(config: RolloutCollectionConfig, identity: Mapping[str, Any]) -> RunFacts:
    """The facts of the run to continue; ``ResumeRefused`` with everything that has changed."""
    facts = read_facts(config.run_fpath)
    if facts.version != RUN_VERSION:
        raise ResumeRefused(
            f"{config.run_fpath}: version {facts.version}, but this program resumes version {RUN_VERSION}"
        )
    changed = [*_changes(facts.config, config_facts(config)), *_changes(facts.agents, identity)]
    if changed:
        listed = "".join(f"\n  - {change}" for change in changed)
        raise ResumeRefused(
            f"{config.output_jsonl_fpath}: was collected with other settings{listed}\n"
            f"undo the changes to continue, or choose another output"
        )
    _refuse_changed_requests(config, facts)
    return facts


def finished_keys(path: Path) -> dict[RolloutId, int]:
    """Key -> line of every result, after the line that a kill tore has been dropped."""
    if not path.exists():
        return {}
    drop_torn_line(path)
    return done_keys(path)


def expected_counts(config: RolloutCollectionConfig, done: Mapping[RolloutId, int]) -> Counter[tuple[str, int]]:
    """Materialized requests by agent and task; a result that none of them asked for is ``ResultsRefused``."""
    counts: Counter[tuple[str, int]] = Counter()
    unasked = dict(done)
    for numbered in read_requests(config.materialized_jsonl_fpath):
        counts[numbered.key[:2]] += 1
        unasked.pop(numbered.key, None)
    for key, line in unasked.items():
        raise ResultsRefused(
            f"{config.output_jsonl_fpath}:{line}: {named(key)} is not among the requests of "
            f"{config.materialized_jsonl_fpath.name}; remove the line"
        )
    return counts


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        was, is_now = before.get(name), now.get(name)
        if was == is_now:
            continue
        if isinstance(was, Mapping) and isinstance(is_now, Mapping):
            yield from (f"{name}.{change}" for change in _changes(was, is_now))
        else:
            yield f"{name}: was {json.dumps(was)}, is {json.dumps(is_now)}"


def _refuse_changed_requests(config: RolloutCollectionConfig, facts: RunFacts) -> None:
    """Compare the requests that the inputs give now with those that were materialized, line by line."""
    path = config.materialized_jsonl_fpath
    if not path.exists():
        raise ResumeRefused(f"{path}: does not exist; without it nothing says what was asked; choose another output")
    digest = hashlib.sha256()
    problems: list[str] = []
    with path.open("rb") as stream:
        for was, now in zip_longest(stream, numbered_requests(config)):
            digest.update(was or b"")
            if was is None or now is None or was != request_json(now.request):
                problems.append(_changed_request(config.input_jsonl_fpath, was, now))
            if len(problems) > _SHOWN:
                problems[_SHOWN:] = ["and more"]
                break
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise ResumeRefused(
            f"{config.output_jsonl_fpath}: was collected from other requests{listed}\n"
            f"undo the changes to continue, or choose another output"
        )
    if digest.hexdigest() != facts.rows_sha256:
        raise ResumeRefused(f"{path}: has changed since it was written; choose another output")


def _changed_request(inputs: Path, was: bytes | None, now: NumberedRequest | None) -> str:
    if now is None:
        return f"{inputs}: ends before the request {(was or b'').decode().strip()[:200]}"
    if was is None:
        return f"{inputs}:{now.line}: is new"
    changes = "; ".join(_changes(json.loads(was), json.loads(request_json(now.request))))
    return f"{inputs}:{now.line}: {changes}"
