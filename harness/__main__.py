"""``python -m harness``."""

import sys

from harness.core.registry import UserError

if __name__ == "__main__":
    try:
        from harness.cli import main  # reads every algorithm file, one of which may be broken
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
