"""Who charges quotas, and how: docs/spec/quota.md#7 to #9. The cluster that most happen in is `quota.quota_env`."""
