"""Administrators' rules for pods that request devices: the rules, the policy file, and their evaluation."""
