"""Objects that the API server has shown, and our own decisions that count before a watch shows them."""
