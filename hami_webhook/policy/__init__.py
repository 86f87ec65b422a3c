"""What administrators demand of pods that ask for devices: the rules, the policy file, and their evaluation."""
