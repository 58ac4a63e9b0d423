import sys

from .recipe import main

sys.exit(main(sys.argv[1:]))
