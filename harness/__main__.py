"""``python -m harness``."""

import sys

from harness.executors.forkserver import likely, start_server

if __name__ == "__main__":
    try:
        if likely(sys.argv[1:]):
            start_server()  # workers import in parallel

        from harness.core.registry import UserError

        try:
            from harness.cli.parser import main  # imports every algorithm file, any of which may be broken
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)  # nothing has started
    sys.exit(main())
