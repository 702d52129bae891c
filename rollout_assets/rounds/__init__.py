"""From a promoted store to an accepted policy: the training and the evaluation that a campaign asks for.

A round is a campaign, a training and an evaluation. The campaign of the next round extends this one's, and lets the
policy that was trained here choose its views.
"""
