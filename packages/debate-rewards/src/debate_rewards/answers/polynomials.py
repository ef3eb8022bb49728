r"""Exact polynomials: the canonical form of most formulas, without a computer algebra system.

`\frac{\sqrt3}{3}`, `1/\sqrt{3}`, `(a+5)(b+2)` and `6-5i` are sums of monomials with rational
coefficients. The atoms of a monomial are symbols, values such as `f(2)`, pi, e, the imaginary unit,
and roots of primes.
Roots of different squarefree integers are linearly independent over the rationals, so two formulas
that can be read are equal exactly if their monomials are.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, localcontext
from fractions import Fraction
from functools import cached_property

Monomial = tuple[tuple[str, Fraction], ...]
"""Atoms with their exponents, sorted. Primes are written in digits, with exponents below 1."""

MAX_TERMS = 200
MAX_PRODUCTS = 6_000
"""Most products of monomials that one formula may cost; beyond that it has no canonical form."""
MAX_EXPONENT = 2_000
MAX_BITS = 20_000
MAX_FACTORED = 10**8
MAX_DEPTH = 60
MAX_FACTORIAL = 100
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
PRECISION = 50

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?|\.\d+)|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<symbol>[a-zA-Z])|(?P<sign>[-+*/^_(){}\[\]!']))"
)
_GREEK_LETTERS = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho "
    "sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi Omega ell"
)
_GREEK = frozenset(f"\\{letter}" for letter in _GREEK_LETTERS.split())
_FUNCTIONS = frozenset(("f", "g"))
"""Letters that are applied to brackets behind them, rather than multiplied."""
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_INDEX = re.compile(r"\w+")


class NotPolynomial(Exception):
    """The formula has no canonical form here."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of monomials with rational coefficients, none of them 0."""

    terms: dict[Monomial, Fraction]

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    @cached_property
    def atoms(self) -> frozenset[str]:
        """All atoms of all monomials."""
        return frozenset(atom for monomial in self.terms for atom, _ in monomial)

    @property
    def rational(self) -> Fraction | None:
        """The value where it is a rational number, else None."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def is_constant(self) -> bool:
        """Whether it is a real number: no symbol and no imaginary unit."""
        return all(atom.isdigit() or atom in ("pi", "e") for atom in self.atoms)

    @property
    def symbols(self) -> frozenset[str]:
        """The atoms that are no numbers."""
        return frozenset(atom for atom in self.atoms if not atom.isdigit() and atom != "pi")

    def value(self) -> Decimal:
        """Return the value of a constant to many digits.

        Raises:
            NotPolynomial: It is too large or too small for a decimal.
        """
        try:
            with localcontext() as context:
                context.prec = PRECISION
                return sum((_term_value(*term) for term in self.terms.items()), Decimal(0))
        except (InvalidOperation, ArithmeticError) as error:
            raise NotPolynomial from error

    def scaled(self) -> "Polynomial":
        """Return its multiple whose first term has the coefficient 1: an equation's canonical side.

        The first term of a polynomial is the one whose monomial comes last in order.
        """
        leading = self.terms[max(self.terms)]
        return Polynomial({monomial: c / leading for monomial, c in self.terms.items()})


def polynomial(text: str) -> Polynomial | None:
    """Read a formula in one spelling; None where it has no canonical form."""
    if _WORD.search(text):
        return None
    try:
        return _Reader(text).whole()
    except (NotPolynomial, ZeroDivisionError, OverflowError):
        return None


def difference(left: Polynomial, right: Polynomial) -> Polynomial:
    """Return left minus right."""
    return _add(left, _negated(right))


def _term_value(monomial: Monomial, coefficient: Fraction) -> Decimal:
    value = Decimal(coefficient.numerator) / Decimal(coefficient.denominator)
    for atom, exponent in monomial:
        power = Decimal(exponent.numerator) / Decimal(exponent.denominator)
        bases = {"pi": PI, "e": Decimal(1).exp()}
        value *= (bases[atom] if atom in bases else Decimal(atom)) ** power
    return value


def _constant(value: Fraction | int) -> Polynomial:
    return Polynomial({(): Fraction(value)} if value else {})


def _atom(name: str, exponent: Fraction = Fraction(1)) -> Polynomial:
    return Polynomial({((name, exponent),): Fraction(1)})


def _negated(one: Polynomial) -> Polynomial:
    return Polynomial({monomial: -c for monomial, c in one.terms.items()})


def _add(left: Polynomial, right: Polynomial) -> Polynomial:
    terms = dict(left.terms)
    for monomial, coefficient in right.terms.items():
        total = terms.pop(monomial, Fraction(0)) + coefficient
        if total:
            terms[monomial] = total
    return Polynomial(terms)


def _multiply_monomials(left: Monomial, right: Monomial) -> tuple[Monomial, Fraction]:
    """Return the product with exponents in their range, and the factor that this takes out."""
    exponents = dict(left)
    for atom, exponent in right:
        exponents[atom] = exponents.get(atom, Fraction(0)) + exponent
    factor = Fraction(1)
    reduced = []
    for atom, exponent in exponents.items():
        if atom == "i":
            if exponent % 4 >= 2:
                factor = -factor
            exponent %= 2
        elif atom.isdigit():
            whole = exponent.numerator // exponent.denominator
            factor *= Fraction(int(atom)) ** whole
            exponent -= whole
        if exponent:
            reduced.append((atom, exponent))
    return tuple(sorted(reduced)), factor


def _inverse(one: Polynomial) -> Polynomial:
    if not one.terms:
        raise ZeroDivisionError
    if len(one.terms) > 1:
        raise NotPolynomial
    ((monomial, coefficient),) = one.terms.items()
    inverted = tuple((atom, -exponent) for atom, exponent in monomial)
    reduced, factor = _multiply_monomials((), inverted)
    return Polynomial({reduced: factor / coefficient})


def _root(one: Polynomial, exponent: Fraction) -> Polynomial:
    """Return a constant of one term to a fractional power."""
    if len(one.terms) != 1 or not one.is_constant:
        raise NotPolynomial
    ((monomial, coefficient),) = one.terms.items()
    result = _constant(1)
    if coefficient < 0:
        if exponent != Fraction(1, 2) or monomial:
            raise NotPolynomial
        coefficient, result = -coefficient, _atom("i")
    raised = {atom: power * exponent for atom, power in monomial}
    for number, sign in ((coefficient.numerator, 1), (coefficient.denominator, -1)):
        for prime, count in _factored(number).items():
            atom = str(prime)
            raised[atom] = raised.get(atom, Fraction(0)) + sign * count * exponent
    (unit, unit_coefficient) = next(iter(result.terms.items()))
    reduced, factor = _multiply_monomials(unit, tuple(raised.items()))
    return Polynomial({reduced: factor * unit_coefficient})


def _factored(number: int) -> dict[int, int]:
    if number > MAX_FACTORED:
        root = math.isqrt(number)
        if root * root != number or root > MAX_FACTORED:
            raise NotPolynomial
        return {prime: 2 * count for prime, count in _factored(root).items()}
    factors: dict[int, int] = {}
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            factors[prime] = factors.get(prime, 0) + 1
            number //= prime
        prime += 1
    if number > 1:
        factors[number] = factors.get(number, 0) + 1
    return factors


class _Reader:
    """Reads a formula by recursive descent, in time that its constants bound."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self._products = 0

    def whole(self) -> Polynomial:
        result = self._sum()
        if self._at < len(self._tokens):
            raise NotPolynomial
        return result

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, token: str) -> bool:
        if self._next() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise NotPolynomial

    def _sum(self) -> Polynomial:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotPolynomial
        total = self._product()
        while self._next() in ("+", "-"):
            sign = self._next()
            self._at += 1
            term = self._product()
            total = _add(total, _negated(term) if sign == "-" else term)
            if len(total.terms) > MAX_TERMS:
                raise NotPolynomial
        self._depth -= 1
        return total

    def _product(self) -> Polynomial:
        negative = False
        while self._next() in ("+", "-"):
            negative ^= self._next() == "-"
            self._at += 1
        result = self._factor()
        while self._next():
            if self._take("*") or self._take("\\cdot") or self._take("\\times"):
                result = self._times(result, self._signed_factor())
            elif self._take("/"):
                result = self._times(result, _inverse(self._signed_factor()))
            elif self._begins_factor():
                result = self._times(result, self._factor())
            else:
                break
        return _negated(result) if negative else result

    def _begins_factor(self) -> bool:
        token = self._next()
        is_number = token[0].isdigit() or token[0] == "."
        if is_number and self._at and _is_number(self._tokens[self._at - 1]):
            raise NotPolynomial  # "5 6" is no product.
        if is_number:
            # What follows a bracket or a symbol without a sign is more often a mistake.
            raise NotPolynomial
        return token[0] in "\\({" or token.isalpha()

    def _signed_factor(self) -> Polynomial:
        if self._take("-"):
            return _negated(self._signed_factor())
        return self._factor()

    def _factor(self) -> Polynomial:
        base = self._base()
        if not self._take("^"):
            return base
        exponent = self._argument() if self._next() != "-" else self._signed_factor()
        power = exponent.rational
        if power is None:
            raise NotPolynomial
        return self._power(base, power)

    def _base(self) -> Polynomial:
        token = self._next()
        self._at += 1
        if not token:
            raise NotPolynomial
        if _is_number(token):
            is_factorial = token.isdigit() and int(token) <= MAX_FACTORIAL and self._take("!")
            return _constant(math.factorial(int(token))) if is_factorial else self._number(token)
        if token in ("(", "{"):
            inner = self._sum()
            self._expect(")" if token == "(" else "}")
            return inner
        if token == "\\frac":
            numerator = self._argument()
            return self._times(numerator, _inverse(self._argument()))
        if token == "\\sqrt":
            return self._square_root()
        if token == "\\exp":
            power = self._argument().rational
            if power is None:
                raise NotPolynomial
            return self._power(_atom("e"), power)
        if token == "\\pi":
            return _atom("pi")
        if token in _FUNCTIONS and self._next() == "(":
            argument = sorted(map(repr, self._base().terms.items()))
            return _atom(f"{token}({', '.join(argument)})")
        if token.isalpha() or token in _GREEK:
            return _atom(token + self._index())
        raise NotPolynomial

    def _number(self, token: str) -> Polynomial:
        value = _constant(Fraction(token.removesuffix(".")))
        mixed = self._mixed_part() if token.isdigit() else None
        return value if mixed is None else _add(value, _constant(mixed))

    def _mixed_part(self) -> Fraction | None:
        r"""Read the fraction of a mixed number: `\frac{1}{2}` directly behind a whole number."""
        ahead = self._tokens[self._at : self._at + 7]
        if len(ahead) < 7 or ahead[0] != "\\frac" or ahead[1] + ahead[3] != "{}":
            return None
        if ahead[4] + ahead[6] != "{}" or not (ahead[2].isdigit() and ahead[5].isdigit()):
            return None
        if int(ahead[2]) >= int(ahead[5]):
            return None
        self._at += 7
        return Fraction(int(ahead[2]), int(ahead[5]))

    def _index(self) -> str:
        name = ""
        while self._take("'"):
            name += "'"
        if not self._take("_"):
            return name
        if not self._take("{"):
            index = self._next()
            self._at += 1
        else:
            index = ""
            while self._next() not in ("}", ""):
                index += self._next()
                self._at += 1
            self._expect("}")
        if not _INDEX.fullmatch(index):
            raise NotPolynomial
        return f"{name}_{index}"

    def _square_root(self) -> Polynomial:
        degree = Fraction(2)
        if self._take("["):
            number = self._next()
            self._at += 1
            if not number.isdigit() or not 2 <= int(number) <= 9:
                raise NotPolynomial
            degree = Fraction(int(number))
            self._expect("]")
        return self._power(self._argument(), 1 / degree)

    def _argument(self) -> Polynomial:
        token = self._next()
        if token in ("{", "("):
            return self._base()
        if _is_number(token):
            self._at += 1
            return _constant(Fraction(token.removesuffix(".")))
        return self._base()

    def _times(self, left: Polynomial, right: Polynomial) -> Polynomial:
        self._products += len(left.terms) * len(right.terms)
        if self._products > MAX_PRODUCTS:
            raise NotPolynomial
        terms: dict[Monomial, Fraction] = {}
        for left_monomial, left_coefficient in left.terms.items():
            for right_monomial, right_coefficient in right.terms.items():
                monomial, factor = _multiply_monomials(left_monomial, right_monomial)
                product = left_coefficient * right_coefficient * factor
                if product.numerator.bit_length() + product.denominator.bit_length() > MAX_BITS:
                    raise NotPolynomial
                terms[monomial] = terms.get(monomial, Fraction(0)) + product
        if len(terms) > MAX_TERMS:
            raise NotPolynomial
        return Polynomial({monomial: c for monomial, c in terms.items() if c})

    def _power(self, base: Polynomial, exponent: Fraction) -> Polynomial:
        if abs(exponent) > MAX_EXPONENT:
            raise NotPolynomial
        if exponent.denominator != 1:
            return _root(base, exponent)
        count = abs(exponent.numerator)
        if len(base.terms) <= 1:
            return self._power_of_term(base, exponent)
        result = _constant(1)
        for _ in range(count):
            result = self._times(result, base)
        return _inverse(result) if exponent < 0 else result

    def _power_of_term(self, base: Polynomial, exponent: Fraction) -> Polynomial:
        if not base.terms:
            if exponent <= 0:
                raise NotPolynomial
            return base
        ((monomial, coefficient),) = base.terms.items()
        bits = max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length())
        if bits * abs(exponent) > MAX_BITS:
            raise NotPolynomial
        raised = tuple((atom, power * exponent) for atom, power in monomial)
        reduced, factor = _multiply_monomials((), raised)
        return Polynomial({reduced: factor * coefficient**exponent.numerator})


def _tokens(text: str) -> list[str]:
    tokens = []
    at = 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if match is None:
            raise NotPolynomial
        tokens.append(match[0].strip())
        at = match.end()
    return tokens


def _is_number(token: str) -> bool:
    return token[:1].isdigit() or (token[:1] == "." and len(token) > 1)
