"""Continuing a collection that stopped: only if nothing that its results depend on has changed.

``<stem>_run.json`` holds the configuration, what the agents run, and the digest of the materialized
requests, which lie beside it. What cannot change a result (servers, parallelism, deadlines) may change between runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rollout_assets.collection import inputs
from rollout_assets.collection.configs import RolloutCollectionConfig
from rollout_assets.collection.result_files import drop_torn_line, named, read_results
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import ResultsRefused, ResumeRefused
from rollout_assets.files import file_sha256, publish_json, publishing
from rollout_assets.metrics.columns import RolloutId

RUN_VERSION = 1
DECIDING = {"agent_name", "limit", "num_repeats", "num_repeats_add_seed", "responses_create_params", "run_seed"}
"""Fields of a configuration that decide what is asked, beside the request template and the store."""

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
    digest, count = hashlib.sha256(), 0
    with publishing(config.materialized_jsonl_fpath) as scratch, scratch.open("wb") as stream:
        for numbered in inputs.numbered_requests(config):
            line = inputs.request_json(numbered.request)
            digest.update(line)
            stream.write(line)
            count += 1
    facts = RunFacts(config=config_facts(config), agents=dict(identity), rows=count, rows_sha256=digest.hexdigest())
    facts.publish(config.run_fpath)
    return facts


def config_facts(config: RolloutCollectionConfig) -> dict[str, Any]:
    """The part of a configuration that decides what is asked, as plain JSON values."""
    facts = config.model_dump(include=DECIDING) | {
        "prompt_config": dict(inputs.read_template(config.prompt_config)),
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
    _refuse_differences(config, "with other settings", changed)
    _refuse_changed_requests(config, facts)
    return facts


def finished_keys(config: RolloutCollectionConfig) -> dict[RolloutId, int]:
    """Key -> line of every result, after the line that a kill tore has been dropped.

    A key that comes twice is ``ResultsRefused`` with both lines, and so is a result that no request asked for.
    """
    path = config.output_jsonl_fpath
    done: dict[RolloutId, int] = {}
    if not path.exists():
        return done
    drop_torn_line(path)
    for number, _, key, _ in read_results(path):
        first = done.setdefault(key, number)
        if first != number:
            raise ResultsRefused(f"{path}:{number}: {named(key)} is already on line {first}; remove one of them")
    requests = config.materialized_jsonl_fpath
    unasked = set(done).difference(map(inputs.request_key, inputs.read_requests(requests)))
    for key in sorted(unasked, key=done.__getitem__):
        raise ResultsRefused(
            f"{path}:{done[key]}: {named(key)} is not among the requests of {requests.name}; remove the line"
        )
    return done


def _refuse_differences(config: RolloutCollectionConfig, collected: str, differences: Sequence[str]) -> None:
    if differences:
        listed = "".join(f"\n  - {difference}" for difference in differences)
        where = f"{config.output_jsonl_fpath}: was collected {collected}"
        raise ResumeRefused(f"{where}{listed}\nundo the changes to continue, or choose another output")


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
    if file_sha256(path) != facts.rows_sha256:
        raise ResumeRefused(f"{path}: has changed since it was written; restore it, or choose another output")
    problems: list[str] = []
    with path.open("rb") as stream:
        for was, now in zip_longest(stream, inputs.numbered_requests(config)):
            if was is None or now is None or was != inputs.request_json(now.request):
                problems.append(_changed_request(config.input_jsonl_fpath, was, now))
            if len(problems) > _SHOWN:
                problems[_SHOWN:] = ["and more"]
                break
    _refuse_differences(config, "from other requests", problems)


def _changed_request(path: Path, was: bytes | None, now: inputs.NumberedRequest | None) -> str:
    if now is None:
        return f"{path}: ends before the request {(was or b'').decode().strip()[:200]}"
    if was is None:
        return f"{path}:{now.line}: is new"
    changes = "; ".join(_changes(json.loads(was), json.loads(inputs.request_json(now.request))))
    return f"{path}:{now.line}: {changes}"
