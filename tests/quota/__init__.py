"""The quota chapter, case by case. `world` is the small cluster most of them happen in."""
