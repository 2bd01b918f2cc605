"""The word problems' templates, in four tiers by their number of steps.

A wording names its operands in the order of `operands`; a step is (result, `left operator right`, sentence), and the
last step's result is the answer. `generate.py` draws the operands and throws away draws whose numbers make no sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Numbers:
    """The values low, low + step, … high of an operand."""

    low: str
    high: str
    step: str = "1"
    money: bool = False
    """Written as `$4.50` in the question."""

    @property
    def whole(self) -> bool:
        """Whether every value is an integer of things, not of money."""
        return not self.money and all(Decimal(x) == int(Decimal(x)) for x in (self.low, self.step))


@dataclass(frozen=True)
class Template:
    """One kind of word problem."""

    name: str
    tier: int
    operands: dict[str, Numbers]
    wordings: tuple[str, ...]
    steps: tuple[tuple[str, str, str], ...]


_FEW = Numbers("2", "9")
_PRICE = Numbers("0.25", "6.00", "0.25", money=True)
_TICKET = Numbers("3.50", "14.00", "0.50", money=True)

TEMPLATES = (
    Template(
        "find-more",
        1,
        {"a": _FEW, "b": _FEW},
        (
            "{name} has {a} {things} and finds {b} more. How many {things} does {name} have now?",
            "There are {a} {things} on the table. {name} puts {b} more next to them. "
            "How many {things} are on the table?",
            "{name} collected {a} {things} in the morning and {b} in the afternoon. How many {things} is that in all?",
        ),
        (("total", "a + b", "That is {eq} {things}."),),
    ),
    Template(
        "give-away",
        1,
        {"a": Numbers("5", "20"), "b": _FEW},
        (
            "{name} has {a} {things} and gives {b} of them to {other}. How many {things} does {name} have left?",
            "There were {a} {things} in a drawer. {name} took {b} of them out. "
            "How many {things} are still in the drawer?",
            "Out of {a} {things}, {name} lost {b}. How many {things} remain?",
        ),
        (("left", "a - b", "There are {eq} {things} left."),),
    ),
    Template(
        "equal-groups",
        1,
        {"a": _FEW, "b": Numbers("2", "12")},
        (
            "{name} fills {a} {groups} with {b} {things} each. How many {things} are there in all?",
            "There are {a} {groups} on a shelf, and each {group} holds {b} {things}. "
            "How many {things} are on the shelf?",
            "{name} buys {a} {groups} of {things}. Every {group} has {b} {things} in it. "
            "How many {things} does {name} buy?",
        ),
        (("total", "a * b", "The {groups} hold {eq} {things}."),),
    ),
    Template(
        "fair-share",
        1,
        {"a": Numbers("6", "72"), "b": _FEW},
        (
            "{name} shares {a} {things} equally among {b} friends. How many {things} does each friend get?",
            "{a} {things} are packed into {b} {groups}, the same number in each. How many {things} are in one {group}?",
            "{name} puts {a} {things} into {b} equal rows. How many {things} are in one row?",
        ),
        (("each", "a / b", "Each part has {eq} {things}."),),
    ),
    Template(
        "two-prices",
        1,
        {"p": _PRICE, "q": _PRICE},
        (
            "One {item} costs {p} and one {item2} costs {q}. How many dollars do they cost together?",
            "{name} pays {p} for one {item} and {q} for one {item2}. How many dollars does {name} pay in all?",
        ),
        (("total", "p + q", "Together they cost {eq} dollars."),),
    ),
    Template(
        "ribbon",
        1,
        {"a": _FEW, "d": Numbers("0.5", "4.5", "0.5")},
        (
            "{name} needs {a} pieces of ribbon, each {d} metres long. How many metres of ribbon does {name} need?",
            "{name} walks around a park {a} times. One round is {d} kilometres. How many kilometres does {name} walk?",
            "{name} fills {a} bottles with {d} litres of water each. How many litres of water does {name} use?",
        ),
        (("total", "a * d", "That makes {eq} in all."),),
    ),
    Template(
        "buy-then-give",
        2,
        {"a": Numbers("8", "60"), "b": Numbers("5", "40"), "c": Numbers("3", "30")},
        (
            "{name} has {a} {things}, buys {b} more and then gives {c} to {other}. "
            "How many {things} does {name} have now?",
            "A jar holds {a} {things}. {name} adds {b}, and later {other} takes {c} out. "
            "How many {things} are in the jar?",
        ),
        (
            ("more", "a + b", "At first that makes {eq} {things}."),
            ("left", "more - c", "Afterwards {eq} {things} are left."),
        ),
    ),
    Template(
        "groups-and-loose",
        2,
        {"a": Numbers("3", "15"), "b": Numbers("4", "24"), "c": Numbers("2", "30")},
        (
            "{name} has {a} {groups} with {b} {things} each, and {c} loose {things}. "
            "How many {things} does {name} have?",
            "A shop gets {a} {groups} of {b} {things} and finds {c} more {things} in the store room. "
            "How many {things} is that?",
        ),
        (
            ("packed", "a * b", "The {groups} hold {eq} {things}."),
            ("total", "packed + c", "With the others there are {eq} {things}."),
        ),
    ),
    Template(
        "change",
        2,
        {"n": _FEW, "p": _PRICE, "paid": Numbers("10.00", "50.00", "10.00", money=True)},
        (
            "{name} buys {n} {items} at {p} each and pays with {paid}. How many dollars of change does {name} get?",
            "A shop sells {items}. {name} takes {n} of them at {p} apiece and hands over {paid}. "
            "How many dollars does {name} get back?",
        ),
        (
            ("cost", "n * p", "The {items} cost {eq} dollars."),
            ("back", "paid - cost", "The change is {eq} dollars."),
        ),
    ),
    Template(
        "keep-then-share",
        2,
        {"a": Numbers("20", "90"), "b": Numbers("3", "20"), "c": _FEW},
        (
            "{name} has {a} {things}, keeps {b} and shares the rest equally among {c} friends. "
            "How many {things} does each friend get?",
            "Of {a} {things}, {b} are damaged. {name} packs the good ones into {c} equal {groups}. "
            "How many {things} are in one {group}?",
        ),
        (
            ("rest", "a - b", "There are {eq} {things} to divide."),
            ("each", "rest / c", "Each part has {eq} {things}."),
        ),
    ),
    Template(
        "walk-and-ride",
        2,
        {"n": Numbers("3", "7"), "d": Numbers("1.5", "9.5", "0.5"), "e": Numbers("2.5", "20.5", "0.5")},
        (
            "{name} runs on {n} days a week, {d} kilometres each time, and cycles {e} kilometres on Sunday. "
            "How many kilometres is that in a week?",
            "{name} pours {n} jugs of {d} litres into a barrel that already holds {e} litres. "
            "How many litres are in the barrel now?",
        ),
        (
            ("part", "n * d", "The equal parts make {eq}."),
            ("total", "part + e", "In all that is {eq}."),
        ),
    ),
    Template(
        "two-kinds",
        3,
        {"n": _FEW, "p": _PRICE, "m": _FEW, "q": _PRICE},
        (
            "{name} buys {n} {items} at {p} each and {m} {items2} at {q} each. How many dollars does {name} spend?",
            "At a fair {name} sells {n} {items} for {p} each and {m} {items2} for {q} each. "
            "How many dollars does {name} take in?",
        ),
        (
            ("first", "n * p", "The {items} come to {eq} dollars."),
            ("second", "m * q", "The {items2} come to {eq} dollars."),
            ("total", "first + second", "Together that is {eq} dollars."),
        ),
    ),
    Template(
        "wages",
        3,
        {
            "h": Numbers("3", "9"),
            "r": Numbers("6.50", "18.00", "0.50", money=True),
            "bonus": Numbers("4", "25", money=True),
            "spent": Numbers("5.50", "40.00", "0.50", money=True),
        },
        (
            "{name} works {h} hours at {r} an hour and gets {bonus} extra. Then {name} spends {spent}. "
            "How many dollars are left?",
            "For {h} hours in a garden {name} earns {r} an hour. {other} adds a tip of {bonus}, and a pair of boots "
            "costs "
            "{spent}. How many dollars does {name} keep?",
        ),
        (
            ("pay", "h * r", "The hours bring {eq} dollars."),
            ("earned", "pay + bonus", "With the extra money that is {eq} dollars."),
            ("left", "earned - spent", "After paying, {eq} dollars are left."),
        ),
    ),
    Template(
        "rows-of-plants",
        3,
        {"r": Numbers("4", "15"), "c": Numbers("5", "18"), "f": Numbers("2", "20"), "k": _FEW},
        (
            "{name} plants {r} rows of {c} seeds. {f} seeds do not grow. The young plants go into {k} beds, the same "
            "number "
            "in each. How many plants are in one bed?",
            "A hall has {r} rows of {c} chairs. {f} chairs are broken, and the others are divided equally among {k} "
            "rooms. "
            "How many chairs does each room get?",
        ),
        (
            ("all", "r * c", "At first there are {eq}."),
            ("good", "all - f", "Of these, {eq} can be used."),
            ("each", "good / k", "Each place gets {eq}."),
        ),
    ),
    Template(
        "rest-of-the-book",
        3,
        {"t": Numbers("90", "400", "5"), "a": Numbers("8", "40"), "d": Numbers("2", "7"), "e": Numbers("2", "8")},
        (
            "A book has {t} pages. {name} reads {a} pages a day for {d} days and wants to finish it in {e} more days, "
            "the same "
            "number of pages each day. How many pages a day must {name} read then?",
            "A road of {t} metres is to be painted. {name} paints {a} metres an hour for {d} hours; the rest takes "
            "{e} hours "
            "at an even pace. How many metres an hour is that pace?",
        ),
        (
            ("done", "a * d", "The first part is {eq}."),
            ("rest", "t - done", "What remains is {eq}."),
            ("pace", "rest / e", "That is {eq} each time."),
        ),
    ),
    Template(
        "bakery",
        4,
        {
            "t": Numbers("3", "12"),
            "n": Numbers("6", "24"),
            "u": Numbers("2", "20"),
            "p": Numbers("0.25", "2.50", "0.25", money=True),
            "cost": Numbers("5", "40", money=True),
        },
        (
            "{name} bakes {t} trays of {n} rolls. {u} rolls are not sold; the others sell at {p} each. "
            "The flour cost {cost}. "
            "How many dollars does {name} earn after paying for the flour?",
            "A stall gets {t} crates of {n} lemons. {u} of the lemons go bad, and {name} sells the rest at {p} each. "
            "The stall's "
            "rent is {cost}. How many dollars are left after the rent?",
        ),
        (
            ("all", "t * n", "There are {eq} at first."),
            ("sold", "all - u", "Of these, {eq} are sold."),
            ("income", "sold * p", "They bring {eq} dollars."),
            ("profit", "income - cost", "What is left is {eq} dollars."),
        ),
    ),
    Template(
        "class-trip",
        4,
        {
            "s": Numbers("8", "30"),
            "p": _TICKET,
            "a": Numbers("2", "5"),
            "q": _TICKET,
            "bus": Numbers("40", "200", "5", money=True),
        },
        (
            "A class of {s} children visits a museum. A child's ticket costs {p}. "
            "The {a} teachers pay {q} each, and the bus "
            "costs {bus}. How many dollars does the trip cost?",
            "{name} orders lunch for {s} runners at {p} each and for {a} judges at {q} each. "
            "Renting the hall costs {bus}. "
            "How many dollars is that in all?",
        ),
        (
            ("first", "s * p", "The larger group costs {eq} dollars."),
            ("second", "a * q", "The smaller group costs {eq} dollars."),
            ("people", "first + second", "For all the people that is {eq} dollars."),
            ("total", "people + bus", "Everything together is {eq} dollars."),
        ),
    ),
    Template(
        "two-kinds-change",
        4,
        {"n": _FEW, "p": _PRICE, "m": _FEW, "q": _PRICE, "paid": Numbers("20.00", "100.00", "20.00", money=True)},
        (
            "{name} buys {n} {items} at {p} each and {m} {items2} at {q} each, and pays with {paid}. "
            "How many dollars of change does {name} get?",
            "One basket holds {n} {items} at {p} each and {m} {items2} at {q} each. {name} has {paid}. "
            "How many dollars does {name} have left after buying everything in the basket?",
        ),
        (
            ("first", "n * p", "The {items} cost {eq} dollars."),
            ("second", "m * q", "The {items2} cost {eq} dollars."),
            ("cost", "first + second", "Together they cost {eq} dollars."),
            ("left", "paid - cost", "That leaves {eq} dollars."),
        ),
    ),
    Template(
        "average",
        4,
        {
            "a": Numbers("5", "60"),
            "b": Numbers("5", "60"),
            "c": Numbers("5", "60"),
            "d": Numbers("5", "60"),
            "n": Numbers("4", "4"),
        },
        (
            "{name} collects {a}, {b}, {c} and {d} {things} in the weeks of one month. "
            "How many {things} is that on average in "
            "each of the {n} weeks?",
            "{name} picks {a} pears on Monday, {b} on Tuesday, {c} on Wednesday and {d} on Thursday. "
            "How many pears a day is "
            "that on average over the {n} days?",
        ),
        (
            ("two", "a + b", "The first two make {eq}."),
            ("three", "two + c", "With the third that is {eq}."),
            ("all", "three + d", "With the fourth that is {eq}."),
            ("mean", "all / n", "The average is {eq}."),
        ),
    ),
    Template(
        "tank",
        4,
        {
            "size": Numbers("460", "900", "10"),
            "r": Numbers("8", "30"),
            "t": Numbers("4", "15"),
            "l": _FEW,
            "u": Numbers("2", "12"),
        },
        (
            "An empty tank holds {size} litres. Water runs in at {r} litres a minute for {t} minutes; then {l} litres "
            "a minute "
            "leak out for {u} minutes. How many more litres would fill the tank?",
            "{name} wants to save {size} stamps. {name} gets {r} stamps a week for {t} weeks and then gives away {l} "
            "stamps a "
            "week for {u} weeks. How many stamps are still missing?",
        ),
        (
            ("gained", "r * t", "What comes in is {eq}."),
            ("lost", "l * u", "What goes out is {eq}."),
            ("held", "gained - lost", "That leaves {eq}."),
            ("missing", "size - held", "What is missing is {eq}."),
        ),
    ),
)
