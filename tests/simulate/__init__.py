"""The whole pipeline on files."""
