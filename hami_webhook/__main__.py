"""`python -m hami_webhook` is the command line."""

import sys

from hami_webhook.cli import main

sys.exit(main())
