"""`kubectl hami`: quotas, nodes, cards and pods as a user's own rights show them."""
