"""Tables as bytes on disk: columns, row chunks, files, and which chunks a store holds."""
