"""Tests on several processes at once: each takes the next class's tests from a common queue.

A worker has a shared server of its own. A test that measures time, or looks at all of the host, is marked `@alone` and runs when
the workers are gone.
"""
import atexit
import json
import os
import signal
import struct
import sys
import traceback

INDEX = struct.Struct("I")
MOST = 1000  # batches: what a pipe holds without a reader, with room to spare


def alone(item):
    """Marks a test or a whole class: nothing else runs beside it."""
    item.alone = True
    return item


def is_alone(test):
    method = getattr(test, getattr(test, "_testMethodName", ""), None)
    return getattr(type(test), "alone", False) or getattr(method, "alone", False)


def expected(batch):
    """What a batch is said to take, for the order: the limits of its longer tests."""
    return sum(getattr(getattr(test, test._testMethodName, None), "time_limit", 10) for test in batch)


def batches(tests, jobs):
    """Tests of one class together, the longest first; a class marked `spread` in as many parts as there are workers."""
    found = []
    for test in tests:
        if not found or type(found[-1][0]) is not type(test):
            found.append([])
        found[-1].append(test)
    parts = []
    for batch in found:
        count = jobs if getattr(type(batch[0]), "spread", False) else 1
        parts += [batch[n::count] for n in range(count) if batch[n::count]]
    return sorted(parts, key=expected, reverse=True)


class Workers:
    def __init__(self, work, run_batch, finish, new_result):
        """run_batch(batch, result) -> whether to go on; finish(result): gives up what a worker holds."""
        assert len(work) < MOST
        self.work, self.run_batch, self.finish, self.new_result = work, run_batch, finish, new_result
        self.queue, feed = os.pipe()
        for number in range(len(work)):
            os.write(feed, INDEX.pack(number))
        os.close(feed)  # the queue ends with its last number
        self.children = []  # (pid, reading end of its report)

    def start(self, jobs):
        for _ in range(jobs):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                for _, other in self.children:
                    os.close(other)
                self.child(writing)
            os.close(writing)
            self.children.append((pid, reading))
        return self

    def batch(self):
        """The next one, or None. Numbers are written and read whole: a pipe keeps so few bytes together."""
        data = os.read(self.queue, INDEX.size)
        return self.work[INDEX.unpack(data)[0]] if data else None

    def child(self, report):
        """Never returns. What tests left to the end of the program happens at the worker's end."""
        result, status = self.new_result(), 0
        try:
            batch = self.batch()
            while batch and self.run_batch(batch, result):
                batch = self.batch()
            while batch and self.batch():
                pass  # nobody takes the rest
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal and the parent both send it: the clean-up goes on
            result.bad.append("interrupted")
        except BaseException:  # noqa: B902
            traceback.print_exc()
            status = 1
        try:
            self.finish(result)
            atexit._run_exitfuncs()
            with os.fdopen(report, "w", encoding="utf-8") as out:
                json.dump({"ran": result.testsRun, "passed": result.passed, "bad": result.bad}, out)
        except BaseException:  # noqa: B902
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def interrupt(self):
        for pid, _ in self.children:
            try:
                os.kill(pid, signal.SIGINT)
            except ProcessLookupError:
                pass

    def join(self, result):
        """Waits for all and adds up; a worker that dies is a failure."""
        for number, (pid, reading) in enumerate(self.children):
            with os.fdopen(reading, encoding="utf-8") as source:
                text = self.whole(source)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            got = json.loads(text) if text else {"ran": 0, "passed": 0, "bad": []}
            result.testsRun += got["ran"]
            result.passed += got["passed"]
            result.bad += got["bad"]
            if status or not text:
                result.bad.append(f"worker {number + 1} ended with {status}")
        os.close(self.queue)

    def whole(self, source):
        while True:
            try:
                return source.read()
            except KeyboardInterrupt:
                self.interrupt()
