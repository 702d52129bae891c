"""The code location that `workspace.yaml` names."""

from __future__ import annotations

import dagster as dg

defs = dg.Definitions()
