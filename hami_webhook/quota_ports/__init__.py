"""What reviews ask of the quotas: the ports of `admission`, answered from the caches and by the chargers."""
