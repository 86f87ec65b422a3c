"""One module, or package, for each vendor."""
