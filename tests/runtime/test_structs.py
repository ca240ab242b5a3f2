from __future__ import annotations

import subprocess
import sys

SLOWLY_LEARNT = '''
import sys, threading, types
import msgspec

SOURCE = """
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct):
    number: whole_number() = 0
class Outer(msgspec.Struct):
    inner: Inner
"""
learning, together, decoded = threading.Event(), threading.Event(), threading.Event()

def whole_number():
    """Called while msgspec learns `Inner`, and so is in the midst of `Outer`."""
    learning.set()
    if together.is_set():
        decoded.wait(60)
    return int

module = types.ModuleType("tramfl.slowly")
module.whole_number = whole_number
exec(SOURCE, module.__dict__)
sys.modules["tramfl.slowly"] = module

from tramfl.runtime.registers.records import Records

Records()
content = msgspec.msgpack.encode({"inner": {"number": 3}})
found = []
first = threading.Thread(target=lambda: found.append(msgspec.msgpack.decode(content, type=module.Outer)))
together.set()
first.start()
learning.wait()
found.append(msgspec.msgpack.decode(content, type=module.Outer))
decoded.set()
first.join()
assert [outer.inner.number for outer in found] == [3, 3]
'''


def test_two_threads_may_decode_a_struct_for_the_first_time_once_there_is_a_register() -> None:
    # Without the register the process ends with a segmentation fault.
    played = subprocess.run([sys.executable, "-c", SLOWLY_LEARNT], capture_output=True, timeout=300, check=False)
    assert played.returncode == 0, played.stderr[-2000:]
