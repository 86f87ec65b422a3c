"""docs/spec/quota.md, case by case. `QuotaEnv` is the small cluster most of them happen in."""
