"""Every interleaving of the charging code, up to bounds: see `python -m hack.explore --help`."""
