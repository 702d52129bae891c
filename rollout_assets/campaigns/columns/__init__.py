"""What is asked of every shard of a campaign again and again, in columns: 100,000 shards are a few megabytes.

Each table is kept in a file that can be removed at any time: it is made again from the plan and the markers, and it is
believed only while the files that it was made from have the same inode, size and times.
"""
