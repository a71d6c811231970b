"""`python -m sa_atp` is `sa-atp`."""

import sys

from sa_atp.cli import main

sys.exit(main())
