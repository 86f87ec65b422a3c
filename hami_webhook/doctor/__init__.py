"""Whether an installation works, link by link: from the webhook configuration to a bound pod."""

NAMESPACE = "hami-system"
"""Where our manifests install the program."""
