"""What sensors and schedules ask for. A look only reads; whatever it asks for is written by Dagster, or by a run.

So a test evaluation in the UI changes nothing, and a daemon that dies after a look loses nothing: every look compares
source, plan, files and instance as they are.
"""
