"""``python -m harness``."""

import sys

from harness.cli.parser import main

if __name__ == "__main__":
    sys.exit(main())
