"""Synthetic sources: procedural homes, walks through them, and what a camera sees, written as a real source store.

``config.SyntheticConfig`` says what to build, ``store.build_synthetic_store`` builds it and
``store.append_synthetic_snippets`` adds to it.
"""
