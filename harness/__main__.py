"""``python -m harness``."""

import atexit
import os
import sys
import threading
from typing import NoReturn

from harness.executors import local_ray
from harness.executors.forkserver import likely, start_server


def main() -> None:
    """Run the command of this process, and end with its exit code."""
    try:
        if likely(sys.argv[1:]):
            start_server()  # workers import in parallel
        local_ray.begin(sys.argv[1:])

        from harness.cli import parser
    except KeyboardInterrupt:
        sys.exit(130)  # nothing has started
    leave(parser.main())


def leave(code: int) -> NoReturn:
    """End this process without taking its objects apart, which after importing torch takes a third of a second.

    Threads are waited for and exit handlers called, as at any other end.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
