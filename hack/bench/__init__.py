"""Benchmarks: every figure beside a baseline measured in the same run, because machines differ and are noisy."""
