"""docs/spec/quota.md, case by case. `world` is the small cluster most of them happen in."""
