"""What makes a store right, as data: each module holds one family of checks and the tuple that lists them."""
