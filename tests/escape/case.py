"""One case of the suite: what is tried, what must come of it, and the function that tries."""


class Escaped(Exception):
    """What must not be possible was."""


class Unproven(Exception):
    """The case could not be tried: neither held nor escaped."""


class Case:
    def __init__(self, name, tries, must, run):
        self.name, self.tries, self.must, self.run = name, tries, must, run


class Table:
    """Collects cases: @table("name", "what is tried", "what must come of it")."""

    def __init__(self):
        self.cases = []

    def __call__(self, name, tries, must, **marks):
        def add(function):
            case = Case(name, tries, must, function)
            case.marks = marks
            self.cases.append(case)
            return function

        return add


def hold(condition, text):
    """An escape unless the condition holds."""
    if not condition:
        raise Escaped(text)
