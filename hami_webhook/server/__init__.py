"""The process: its ASGI applications, listeners and TLS, readiness and metrics, and how it is put together."""
