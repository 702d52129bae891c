"""The Dagster side of the platform: assets, checks, jobs, sensors and schedules of every campaign.

Loading the definitions imports only what names things. What a step computes lies in ``assets/``, ``checks/`` and
``automation/``; ``lazy.py`` imports those modules when they are first used.
"""
