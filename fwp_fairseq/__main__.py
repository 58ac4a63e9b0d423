"""``python -m fwp_fairseq``: the ``fwp`` command."""

import sys

from .cli import main

sys.exit(main())
