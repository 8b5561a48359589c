"""When Python looks for garbage."""

import gc

from harness.core.garbage import last_work, no_collection


def young(objects):
    """Return how many of some objects the next look is at."""
    looked_at = {id(one) for one in gc.get_objects(generation=0)}
    return sum(id(one) in looked_at for one in objects)


def test_what_the_last_work_made_is_not_looked_at_next():
    frozen = gc.get_freeze_count()
    with last_work():
        made = [[number] for number in range(1000)]
        assert young(made) == 1000
    assert gc.isenabled() and not young(made)
    assert frozen or not gc.get_freeze_count(), "and is looked at some day"


def test_what_other_work_made_is():
    with no_collection():
        made = [[number] for number in range(100)]
    assert young(made) == 100
