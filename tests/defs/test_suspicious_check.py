"""The check of suspicious rows takes its thresholds and its errors from the campaign."""

import pytest

pytestmark = pytest.mark.ci


@pytest.mark.parametrize(("errors", "level"), [("", "WARN"), ('"low_valid_fanout"', "ERROR")])
def test_a_finding_warns_unless_the_campaign_calls_it_an_error(made_desk, errors, level):
    with made_desk.campaign.open("a") as file:
        file.write(f"\n[suspicious]\nmin_valid_candidates = 13\nerrors = [{errors}]\n")
    runner = made_desk.runner()
    with runner.instance:
        run = runner.run("shard_checks", "shard-000000")
    (check,) = (check for check in run.checks if check.check == "suspicious_rows")
    assert not check.passed and check.level == level


def test_weights_are_recomputed_from_the_source(made_desk):
    with made_desk.campaign.open("a") as file:
        file.write('\n[suspicious]\nmin_half_weight_area = 0.9\nerrors = ["weight_concentrated"]\n')
    runner = made_desk.runner()
    with runner.instance:
        run = runner.run("shard_checks", "shard-000000")
    (check,) = run.failed_checks("ERROR")
    assert check.check == "suspicious_rows" and "weight_concentrated" in check.evidence
