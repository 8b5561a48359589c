"""``python -m harness``."""

import gc
import sys

from harness.cli import parser


def main() -> int:
    """Run the command of this process and return its exit code."""
    code = parser.main()
    gc.freeze()  # nothing is left to collect: searching all modules at the end takes 0.4 s
    return code


if __name__ == "__main__":
    sys.exit(main())
