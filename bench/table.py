"""Figures, medians, and the table they end up in."""
import statistics
import time

# The bare sides of a figure. A limit that names a bare client is judged by AGENT: the same guest, state and port, and nothing of SPACE
# between them and the client. A limit that names the bare port is judged by PLAIN: the hypervisor as it comes. OWN is beside both, to
# show what is left: the least guest that answers at all, on SPACE's own command line.
OWN, PLAIN, AGENT = "the least guest", "plain -cpu max", "the agent by hand"


class Figure:
    """One line: what the bare limit gives, what SPACE gives, and whether that is within the limit."""

    def __init__(self, name, unit, bare, ours, limits, runs, note=""):
        self.name, self.unit, self.bare, self.ours, self.runs, self.note = name, unit, bare, ours, runs, note
        self.limits = limits  # [(text, passed)]; none: for comparison

    @property
    def passed(self):
        return all(ok for _, ok in self.limits)

    def row(self):
        ratio = f"{self.ours / self.bare:.2f} x" if self.bare else "-"
        bare = number(self.bare) if self.bare else "-"
        return [self.name, bare, number(self.ours), self.unit, ratio, "; ".join(text for text, _ in self.limits),
                str(self.runs), ("PASS" if self.passed else "FAIL") if self.limits else ""]


class Failed:
    """A figure that could not be measured."""

    passed, limits = False, [("measured", False)]

    def __init__(self, name, error):
        self.name, self.error = name, error

    def row(self):
        return [self.name, "-", "-", "-", "-", str(self.error)[:60], "0", "FAIL"]


def number(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def show(figures):
    rows = [["figure", "bare", "SPACE", "unit", "ratio", "limit", "runs", ""]] + [f.row() for f in figures]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for at, row in enumerate(rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        if at == 0:
            print("  ".join("-" * width for width in widths))


def median(values):
    return statistics.median(values)


def milliseconds(action, *args):
    begin = time.perf_counter()
    action(*args)
    return (time.perf_counter() - begin) * 1000


def in_turns(actions, rounds, warm_up=0):
    """Milliseconds of each action, by its name. They take turns: a machine that is busy for a while is so for all."""
    for _ in range(warm_up):
        for action in actions.values():
            action()
    times = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            times[name].append(milliseconds(action))
    return times


def against(name, times, limits):
    """One line for each bare side of times, which also has "space". limits(ours, bare) gives the limits of the first,
    the same guest by hand; the others are for comparison."""
    ours = median(times["space"])
    for side in (AGENT, PLAIN, OWN):
        if side in times:
            bare = median(times[side])
            judged = limits(ours, bare) if side == AGENT else []
            yield Figure(name if side == AGENT else f"  bare: {side}", "ms", bare, ours, judged, len(times["space"]))
