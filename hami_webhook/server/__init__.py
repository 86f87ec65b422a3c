"""The process's doors: the ASGI application, TLS and its reload, health, metrics."""
