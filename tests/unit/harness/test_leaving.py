import subprocess
import sys

SCRIPT = """
import atexit, sys, threading, time
from harness.__main__ import leave

def late():
    time.sleep(0.2)
    print("the thread has ended")

class Kept:
    def __del__(self):
        print("taken apart")

kept = Kept()
atexit.register(print, "the handler was called")
threading.Thread(target=late).start()
sys.stderr.write("said")
leave(3)
"""


def test_a_command_ends_in_order_but_is_not_taken_apart():
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (3, "said")
    assert ended.stdout.splitlines() == ["the thread has ended", "the handler was called"]
