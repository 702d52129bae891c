"""The checks by name, and what each promises. Imports nothing, because it is read whenever definitions are loaded."""

from __future__ import annotations

SCHEMA_AND_LINKAGE = "schema_and_linkage"
CONTENT_DIGESTS = "content_digests"
LINEAGE_HASHES = "lineage_hashes"
ROWS_ACCOUNTED_FOR = "rows_accounted_for"

INTEGRITY_CHECKS = {
    SCHEMA_AND_LINKAGE: "The store validator: every array as the schema says, every id linked, every rule kept.",
    CONTENT_DIGESTS: "Every byte of every file, and the content of every array, is what was written.",
    LINEAGE_HASHES: "The config and source hashes in the store are the campaign's and the plan's.",
    ROWS_ACCOUNTED_FOR: "Every planned source row gave records or was skipped with a reason, and readers have "
    "no rollout of a row that the shard lacks.",
}
"""Check -> what it promises. All are errors and stop promotion."""

SUSPICIOUS_ROWS = "suspicious_rows"
VALID_FANOUT = "valid_fanout"
LABEL_YIELD = "label_yield"

QUALITY_CHECKS = {
    SUSPICIOUS_ROWS: "Heuristics over the whole shard find nothing of severity error or warning.",
    VALID_FANOUT: "Every step offers enough views that the actor may take.",
    LABEL_YIELD: "Almost every view that the actor may take has a finite oracle label.",
}
"""Check -> what it promises. They stop no promotion; they warn, but a suspicious row that is an error is an error."""

STORES_VALID = "stores_valid"
NO_LEAKAGE = "no_leakage"
ROWS_ADD_UP = "rows_add_up"
UP_TO_DATE = "up_to_date"
SECOND_OPINION = "second_opinion"
READINESS = "readiness"

STORE_CHECKS = {
    STORES_VALID: "Every file is what promotion validated before it published it. Read are all bytes that the version "
    "added and a sample of the rest; in the job of the store's checks every byte, and the deep validator looks again.",
    NO_LEAKAGE: "No scene and no mesh is in more than one split.",
    ROWS_ADD_UP: "The promoted rows of every table are the sum of the shards' rows, split by split.",
}
"""Check of the promoted store -> what it promises."""

UP_TO_DATE_CHECK = {
    UP_TO_DATE: "Nothing on the way is stale: source, plan, config, shards. A warning that says what is, and why."
}
"""A step of its own, because it also runs by the clock."""

READINESS_CHECK = {
    READINESS: "Every split has enough states, targets and differing labels to be trained on. A warning, with measures."
}
"""Check of the report -> what it promises."""

SECOND_OPINION_CHECK = {
    SECOND_OPINION: "Labels drawn at random, measured again by brute force in double precision, are the stored ones."
}
"""A step of its own, because it takes seconds a label."""

BEATS_RANDOM = "beats_random"
NOT_WORSE_THAN_ACCEPTED = "not_worse_than_accepted"
TRAINED_ON_NO_EVALUATED_SCENE = "trained_on_no_evaluated_scene"

POLICY_CHECKS = {
    BEATS_RANDOM: "The trained policy gains more than random_valid on the same roots, with 95 % confidence.",
    NOT_WORSE_THAN_ACCEPTED: "It is not shown to gain less than the policy that was accepted last, on the same roots.",
    TRAINED_ON_NO_EVALUATED_SCENE: "No evaluated policy was trained, or stopped, on a scene that it is evaluated on.",
}
"""Check of an evaluation -> what it promises. A policy that keeps all of them becomes the accepted one.

A scene that was seen is an error, because the figures then say nothing. So is a policy that is worse than the accepted
one: somebody would put it in its place. Not beating chance is a warning, because the evaluation itself is in order, and
with few scenes it only says that they are too few; so is an accepted policy that cannot be compared with.
"""
