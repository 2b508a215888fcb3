"""Shadow terms: what a value is, up to algebra. They exist to be compared, never to be computed.

    x / sqrt(mean(x * x) + eps), over 8 features
    ->  8**0.5 * x[d] * (8 * eps + sum_r x[r]**2)**-0.5

A term is a number at each point of some axes. Equal terms of one `Table` are the same object.
Sums and products are flat, with constants apart; constructors that keep them so are in
`fuseopt.match.algebra` and beside it. Several of the rewrites there lose all accuracy in floating
point, which is why nothing is ever lowered or evaluated from a term.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fuseopt.ir.dims import Size
from fuseopt.match import constants
from fuseopt.match.constants import Constant
from fuseopt.match.indices import Axis, Index, Looked

NO_AXES: frozenset[Axis] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """Base of all forms.

    number: order of making in the table. axes: free axes. height: how deep reductions are nested.
    """

    number: int
    axes: frozenset[Axis]
    height: int

    @property
    def operands(self) -> tuple[Term, ...]:
        """The terms this one is made of; what an index looks up is not among them."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Term):
    """A constant."""

    value: Constant

    def __str__(self) -> str:
        return constants.text(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Position(Term):
    """The value of an index."""

    index: Index

    def __str__(self) -> str:
        return f"<{self.index}>"


@dataclass(frozen=True, slots=True, eq=False)
class Load(Term):
    """An element of a source: a tensor read from memory, a shared value, or a pattern's capture.

    source: see `Source`. where: the index along each dimension longer than one.
    """

    source: Source
    where: tuple[Index, ...]

    def __str__(self) -> str:
        return f"{self.source.name}[{', '.join(map(str, self.where))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Add(Term):
    """const + sum of coefficient * part."""

    const: Constant
    parts: tuple[tuple[Term, Constant], ...]

    @property
    def operands(self) -> tuple[Term, ...]:
        """The parts without their coefficients."""
        return tuple(t for t, _ in self.parts)

    def __str__(self) -> str:
        words = [t if constants.is_one(c) else f"{constants.text(c)}*{t}" for t, c in self.parts]
        if not constants.is_zero(self.const):
            words.insert(0, constants.text(self.const))
        return "(" + " + ".join(map(str, words)) + ")"


@dataclass(frozen=True, slots=True, eq=False)
class Mul(Term):
    """coefficient * product of base ** power. Never the coefficient one and a single plain base."""

    coefficient: Constant
    factors: tuple[tuple[Term, float], ...]

    @property
    def operands(self) -> tuple[Term, ...]:
        """The bases."""
        return tuple(t for t, _ in self.factors)

    def __str__(self) -> str:
        words = [str(t) if p == 1 else f"{t}**{p:.4g}" for t, p in self.factors]
        if not constants.is_one(self.coefficient):
            words.insert(0, constants.text(self.coefficient))
        return "*".join(words)


@dataclass(frozen=True, slots=True, eq=False)
class Exp(Term):
    """e ** exponent."""

    exponent: Term

    @property
    def operands(self) -> tuple[Term, ...]:
        """The exponent."""
        return (self.exponent,)

    def __str__(self) -> str:
        return f"exp({self.exponent})"


@dataclass(frozen=True, slots=True, eq=False)
class Log(Term):
    """Natural logarithm."""

    arg: Term

    @property
    def operands(self) -> tuple[Term, ...]:
        """The argument."""
        return (self.arg,)

    def __str__(self) -> str:
        return f"log({self.arg})"


@dataclass(frozen=True, slots=True, eq=False)
class Apply(Term):
    """Any other function of values, by its primitive's name, or "to:" and a dtype."""

    name: str
    args: tuple[Term, ...]

    @property
    def operands(self) -> tuple[Term, ...]:
        """The arguments."""
        return self.args

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True, eq=False)
class Fold(Term):
    """A reduction of the body over axes of its own, which are named by nesting height."""

    combine: str
    over: tuple[Axis, ...]
    body: Term

    @property
    def operands(self) -> tuple[Term, ...]:
        """The body."""
        return (self.body,)

    def __str__(self) -> str:
        return f"{self.combine}_{','.join(map(str, self.over))} {self.body}"


@dataclass(frozen=True, slots=True, eq=False)
class Pieces(Term):
    """args[j] where the selector is in [bounds[j - 1], bounds[j]); the first starts at zero."""

    selector: Index
    bounds: tuple[Size, ...]
    args: tuple[Term, ...]

    @property
    def operands(self) -> tuple[Term, ...]:
        """The pieces."""
        return self.args

    def __str__(self) -> str:
        bounds = ["0", *map(str, self.bounds)]
        words = [f"{a} from {b}" for a, b in zip(self.args, bounds, strict=False)]
        return f"{{{'; '.join(words)} at {self.selector}}}"


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What a `Load` reads.

    kind: "input", "let" (a value with several users) or "capture".
    key: what tells sources of one kind apart: a position, an expression, a parameter's name.
    shape: sizes of its dimensions, those of size one left out.
    """

    kind: str
    key: Any
    shape: tuple[Size, ...]
    name: str

    @property
    def params(self) -> tuple[Axis, ...]:
        """The axes that its definition is written in."""
        return tuple(Axis(f"p{d}", s) for d, s in enumerate(self.shape))


TermT = TypeVar("TermT", bound=Term)


@dataclass(slots=True)
class Table:
    """Makes terms; equal ones are made once.

    definitions: what each shared value is, in terms of its params.
    """

    made: dict[tuple[Any, ...], Term] = field(default_factory=dict)
    sources: dict[tuple[Any, ...], Source] = field(default_factory=dict)
    definitions: dict[Source, Term] = field(default_factory=dict)

    def make(
        self, form: type[TermT], axes: frozenset[Axis], height: int, *rest: Any, key: Any = None
    ) -> TermT:
        """Return the term of this form and fields; `key` stands for fields that hold constants."""
        key = (form, *rest) if key is None else (form, key)
        known = self.made.get(key)
        if known is None:
            known = self.made[key] = form(len(self.made), axes, height, *rest)
        return known  # type: ignore[return-value]

    def source(self, kind: str, key: Any, shape: Iterable[Size], name: str) -> Source:
        """Return the source of this kind and key."""
        known = self.sources.get((kind, key))
        if known is None:
            long = tuple(s for s in shape if s != 1)
            known = self.sources[kind, key] = Source(kind, key, long, name)
        return known

    def literal(self, value: Constant) -> Literal:
        """Return a constant term."""
        return self.make(Literal, NO_AXES, 0, value, key=constants.rounded(value))

    def position(self, index: Index) -> Term:
        """Return the value of an index."""
        if not index.terms:
            return self.literal(constants.of_size(index.const))
        return self.make(Position, index.axes, 0, index)

    def load(self, source: Source, where: Iterable[Index]) -> Load:
        """Return an element of a source; `where` has an index for each of its dimensions."""
        where = tuple(where)
        assert len(where) == len(source.shape), f"{source.name} has {len(source.shape)} dimensions"
        axes = NO_AXES.union(*(i.axes for i in where))
        return self.make(Load, axes, 0, source, where)


def joint_axes(terms: Iterable[Term]) -> frozenset[Axis]:
    """Return the free axes of several terms."""
    return NO_AXES.union(*(t.axes for t in terms))


def joint_height(terms: Iterable[Term]) -> int:
    """Return the height of the highest term."""
    return max((t.height for t in terms), default=0)


def walk(term: Term) -> Iterator[Term]:
    """Yield a term and everything below it, each once, definitions of shared values apart."""
    seen: set[int] = set()
    stack = [term]
    while stack:
        found = stack.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            stack.extend(found.operands)


def skeleton(term: Term) -> Any:
    """Return what tells a term apart from others when indices are left out."""
    match term:
        case Literal(value=value):
            return constants.rounded(value)
        case Position():
            return "position"
        case Load(source=source, where=where):
            looked = [a.value for i in where for a, _ in i.terms if isinstance(a, Looked)]
            return (source, *map(skeleton, looked))
        case Add(const=const, parts=parts):
            found = frozenset((skeleton(t), constants.rounded(c)) for t, c in parts)
            return "add", constants.rounded(const), found
        case Mul(coefficient=coefficient, factors=factors):
            powers = frozenset((skeleton(t), p) for t, p in factors)
            return "mul", constants.rounded(coefficient), powers
        case Apply(name=name, args=args):
            return (name, *map(skeleton, args))
        case Fold(combine=combine, body=body):
            return combine, skeleton(body)
        case Pieces(bounds=bounds, args=args):
            return (bounds, *map(skeleton, args))
        case _:
            return (type(term).__name__, *map(skeleton, term.operands))
