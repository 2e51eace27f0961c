"""The commands, one module a group. `gnomon_cli.main` holds their table."""
