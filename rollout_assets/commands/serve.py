"""`rollout-assets serve`: run rollouts for others over HTTP."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from rollout_assets.commands.opened_store import refuse_missing_source
from rollout_assets.commands.terminal import CampaignOption, say, warn
from rollout_assets.config import DEMO_CAMPAIGN, load_campaign
from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import ConfigError
from rollout_assets.files import publish_bytes
from rollout_assets.serving.server.options import ServerOptions


def serve(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond loopback needs --token-env.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.", min=0, max=65_535)] = 0,
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the bearer token.", metavar="NAME")
    ] = None,
    max_in_flight: Annotated[
        int, typer.Option(help="Rollouts accepted at a time; further ones are asked to come again.", min=1)
    ] = 256,
    max_body_mib: Annotated[int, typer.Option(help="Largest request body, in MiB.", min=1, max=2_047)] = 16,
    shutdown_s: Annotated[
        float, typer.Option(help="Seconds that requests under way get when the server stops.", min=0.1)
    ] = 10.0,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write the address here once requests are accepted.", metavar="FILE")
    ] = None,
) -> None:
    """Run a campaign's rollouts for others over HTTP: /health, /run, /run_rollouts, /aggregate_metrics.

    A result is the same to the bit as that of `campaign run` for the same root, recipe and seed. Ctrl-C or SIGTERM
    stops the server: requests under way are finished, further ones are turned away. `rollout-assets -v serve` logs
    every request that failed, with its id.
    """
    options = _options(
        host=host,
        port=port,
        token=_token(token_env),
        max_in_flight=max_in_flight,
        max_body_bytes=max_body_mib << 20,
        shutdown_s=shutdown_s,
    )
    config = load_campaign(campaign)
    if find_spec("uvicorn") is not None:  # without it the extra is missing, which the import below reports
        refuse_missing_source(config.source.store_dir)
    from rollout_assets.serving.server.process import bind, run_server
    from rollout_assets.serving.service import RolloutService

    if ready_file is not None:
        ready_file.unlink(missing_ok=True)

    def on_ready(url: str) -> None:
        say(f"serving campaign {config.name} at {url}")
        if ready_file is not None:
            publish_bytes(ready_file, f"{url}\n".encode())

    with bind(options) as listener:
        warn("warming up …")
        run_server(RolloutService(config), options, listener, on_ready)
    warn("stopped")


def _options(**values: Any) -> ServerOptions:
    try:
        return ServerOptions(**values)
    except ValidationError as error:
        problem = validation_problems(error)[0]
        option = f"--{problem.field}".replace("_", "-") if problem.field else ""
        hint = "; name the variable that holds it with --token-env" if "needs a token" in problem.message else ""
        raise ConfigError(f"{replace(problem, field=option)}{hint}") from None


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise ConfigError(f"--token-env: the environment has no {variable}, or it is empty")
    return token
