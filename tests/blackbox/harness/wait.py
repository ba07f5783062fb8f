"""Waiting on conditions. Deadlines are generous: they bound a failure, they are not what is expected."""
import time

slower = 1.0  # how many times slower than usual this machine is (run.py --slower)


class TimedOut(AssertionError):
    pass


def until(condition, what, timeout=30.0, step=0.02):
    """Returns the first true value of condition(); raises TimedOut naming `what` when the deadline passes."""
    timeout *= slower
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimedOut(f"not within {timeout:g} s: {what} (last: {value!r})")
        time.sleep(step)
