"""The program `rollout-assets`, and `python -m rollout_assets`: Ctrl-C is heeded before anything else is loaded."""

from rollout_assets.interruption import stop_at_once, when_interrupted


def main() -> None:
    """Entry point of the console script."""
    with when_interrupted(stop_at_once):
        from rollout_assets.cli import main as run  # only now, because loading takes a while and may be interrupted

        run()


if __name__ == "__main__":
    main()
