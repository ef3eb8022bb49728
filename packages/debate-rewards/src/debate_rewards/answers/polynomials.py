r"""Exact polynomials: the canonical form of most formulas, without a computer algebra system.

`\frac{\sqrt3}{3}`, `1/\sqrt{3}`, `(a+5)(b+2)` and `6-5i` are sums of monomials with rational
coefficients. The atoms of a monomial are symbols, values such as `f(2)`, pi, e, the imaginary unit,
and roots of primes.
Roots of different squarefree integers are linearly independent over the rationals, so two formulas
that can be read are equal exactly if their monomials are.
"""

import itertools
import math
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, localcontext
from fractions import Fraction
from functools import cached_property

Monomial = tuple[tuple[str, Fraction], ...]
"""Atoms with their exponents, sorted. Primes are written in digits, with exponents below 1."""

# Beyond these bounds a formula has no canonical form, so that reading takes bounded time.
MAX_TERMS = 200
MAX_PRODUCTS = 6_000
"""Most products of monomials for a formula."""
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
"""Letters applied to brackets behind them, rather than multiplied."""
_BRACKETS = {"(": ")", "{": "}"}
_SIGNS_OF_PRODUCT = ("*", "\\cdot", "\\times")
_NUM_MIXED_TOKENS = len(("\\frac", "{", "1", "}", "{", "2", "}"))
_ZERO = Fraction(0)
_ONE = Fraction(1)
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_INDEX = re.compile(r"\w+")


class NotPolynomial(Exception):
    """The formula has no canonical form here."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of monomials with rational coefficients other than 0."""

    terms: dict[Monomial, Fraction]

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    @cached_property
    def atoms(self) -> frozenset[str]:
        """All atoms of all monomials."""
        return frozenset(atom for atom, _ in itertools.chain.from_iterable(self.terms))

    @property
    def rational(self) -> Fraction | None:
        """The value of a rational number; `None` for any other polynomial."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def is_constant(self) -> bool:
        """Without symbols and imaginary unit, so a real number."""
        return all(atom.isdigit() or atom in ("pi", "e") for atom in self.atoms)

    @property
    def symbols(self) -> frozenset[str]:
        """All atoms but numbers."""
        return frozenset(atom for atom in self.atoms if not atom.isdigit() and atom != "pi")

    def value(self) -> Decimal:
        """Compute the value of a constant to many digits.

        Raises:
            NotPolynomial: A decimal cannot be so large or so small.
        """
        try:
            with localcontext() as context:
                context.prec = PRECISION
                transcendental = {"pi": PI, "e": Decimal(1).exp()}
                total = Decimal(0)
                for monomial, coefficient in self.terms.items():
                    term = _as_decimal(coefficient)
                    for atom, exponent in monomial:
                        base = transcendental[atom] if atom in transcendental else Decimal(atom)
                        term *= base ** _as_decimal(exponent)
                    total += term
                return total
        except (InvalidOperation, ArithmeticError) as error:
            raise NotPolynomial from error

    def scaled(self) -> "Polynomial":
        """Scale the leading coefficient to 1: the canonical side of an equation.

        The leading term has the last monomial in order.
        """
        leading_coefficient = self.terms[max(self.terms)]
        scaled_terms = {
            monomial: coefficient / leading_coefficient
            for monomial, coefficient in self.terms.items()
        }
        return Polynomial(scaled_terms)


def polynomial(text: str) -> Polynomial | None:
    """Read a formula in one spelling; `None` where it has no canonical form."""
    if _WORD.search(text):
        return None
    try:
        return _FormulaParser(text).parse()
    except (NotPolynomial, ZeroDivisionError, OverflowError):
        return None


def difference(left: Polynomial, right: Polynomial) -> Polynomial:
    """Subtract the right from the left."""
    return _add(left, _negated(right))


def _as_decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _constant(value: Fraction | int) -> Polynomial:
    return Polynomial({(): Fraction(value)} if value else {})


def _atom(name: str) -> Polynomial:
    return Polynomial({((name, _ONE),): _ONE})


def _negated(polynomial: Polynomial) -> Polynomial:
    return Polynomial({monomial: -value for monomial, value in polynomial.terms.items()})


def _add(left: Polynomial, right: Polynomial) -> Polynomial:
    terms = dict(left.terms)
    for monomial, coefficient in right.terms.items():
        total = terms.pop(monomial, _ZERO) + coefficient
        if total:
            terms[monomial] = total
    return Polynomial(terms)


def _multiply_monomials(left: Monomial, right: Monomial) -> tuple[Monomial, Fraction]:
    """Multiply two monomials.

    Returns:
        The product with all exponents in their range, and the factor taken out for it.
    """
    exponents = dict(left)
    for atom, exponent in right:
        exponents[atom] = exponents.get(atom, _ZERO) + exponent

    factor = _ONE
    reduced = []
    for atom, exponent in exponents.items():
        if atom == "i":
            # i² is -1, i⁴ is 1.
            if exponent % 4 >= 2:
                factor = -factor
            exponent %= 2
        elif atom.isdigit():
            # The whole part of a prime's exponent is a rational factor: 2^(3/2) is 2 times √2.
            whole_exponent = exponent.numerator // exponent.denominator
            factor *= Fraction(int(atom)) ** whole_exponent
            exponent -= whole_exponent
        if exponent:
            reduced.append((atom, exponent))
    return tuple(sorted(reduced)), factor


def _only_term(polynomial: Polynomial) -> tuple[Monomial, Fraction]:
    if len(polynomial.terms) != 1:
        raise NotPolynomial
    return next(iter(polynomial.terms.items()))


def _inverse(polynomial: Polynomial) -> Polynomial:
    if not polynomial.terms:
        raise ZeroDivisionError
    monomial, coefficient = _only_term(polynomial)
    inverted = tuple((atom, -exponent) for atom, exponent in monomial)
    reduced, factor = _multiply_monomials((), inverted)
    return Polynomial({reduced: factor / coefficient})


def _fractional_power(base: Polynomial, exponent: Fraction) -> Polynomial:
    """Raise a constant of one term to a fractional power."""
    monomial, coefficient = _only_term(base)
    if not base.is_constant:
        raise NotPolynomial  # The root of x² is not x.
    sign_root: Monomial = ()
    if coefficient < 0:
        if exponent != Fraction(1, 2) or monomial:
            raise NotPolynomial
        coefficient = -coefficient
        sign_root = (("i", _ONE),)

    raised = {atom: power * exponent for atom, power in monomial}
    for prime, count in _factored(coefficient.numerator).items():
        raised[str(prime)] = raised.get(str(prime), _ZERO) + count * exponent
    for prime, count in _factored(coefficient.denominator).items():
        raised[str(prime)] = raised.get(str(prime), _ZERO) - count * exponent
    reduced, factor = _multiply_monomials(sign_root, tuple(raised.items()))
    return Polynomial({reduced: factor})


def _factored(number: int) -> dict[int, int]:
    if number > MAX_FACTORED:
        # Trial division of a large number takes too long, unless it is a square.
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


class _FormulaParser:
    """Parses a formula by recursive descent, in time bounded by the constants above."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._position = 0
        self._depth = 0
        self._num_products = 0

    def parse(self) -> Polynomial:
        result = self._parse_sum()
        if self._position < len(self._tokens):
            raise NotPolynomial
        return result

    def _peek(self) -> str:
        at_end = self._position >= len(self._tokens)
        return "" if at_end else self._tokens[self._position]

    def _advance(self) -> str:
        token = self._peek()
        self._position += 1
        return token

    def _take(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._position += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise NotPolynomial

    def _parse_sum(self) -> Polynomial:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotPolynomial
        total = self._parse_product()
        while self._peek() in ("+", "-"):
            sign = self._advance()
            term = self._parse_product()
            total = _add(total, _negated(term) if sign == "-" else term)
            if len(total.terms) > MAX_TERMS:
                raise NotPolynomial
        self._depth -= 1
        return total

    def _parse_product(self) -> Polynomial:
        is_negative = False
        while self._peek() in ("+", "-"):
            is_negative ^= self._advance() == "-"
        result = self._parse_factor()
        while token := self._peek():
            if token in _SIGNS_OF_PRODUCT:
                self._advance()
                result = self._multiply(result, self._parse_signed_factor())
            elif token == "/":
                self._advance()
                result = self._multiply(result, _inverse(self._parse_signed_factor()))
            elif _is_number(token) or token[0] == ".":
                # "5 6" is no product, and a number behind a bracket or a symbol without a sign is
                # more often a mistake.
                raise NotPolynomial
            elif token[0] in "\\({" or token.isalpha():
                result = self._multiply(result, self._parse_factor())
            else:
                break
        return _negated(result) if is_negative else result

    def _parse_signed_factor(self) -> Polynomial:
        if self._take("-"):
            return _negated(self._parse_signed_factor())
        return self._parse_factor()

    def _parse_factor(self) -> Polynomial:
        base = self._parse_base()
        if not self._take("^"):
            return base
        is_signed = self._peek() == "-"
        exponent = self._parse_signed_factor() if is_signed else self._parse_argument()
        return self._power(base, _rational(exponent))

    def _parse_base(self) -> Polynomial:
        token = self._advance()
        if _is_number(token):
            return self._parse_number(token)
        if token in _BRACKETS:
            inner = self._parse_sum()
            self._expect(_BRACKETS[token])
            return inner
        if token == "\\frac":
            numerator = self._parse_argument()
            return self._multiply(numerator, _inverse(self._parse_argument()))
        if token == "\\sqrt":
            return self._parse_root()
        if token == "\\exp":
            return self._power(_atom("e"), _rational(self._parse_argument()))
        if token == "\\pi":
            return _atom("pi")
        if token in _FUNCTIONS and self._peek() == "(":
            # The value of a function is an atom, named by its argument in canonical form.
            argument = sorted(map(repr, self._parse_base().terms.items()))
            return _atom(f"{token}({', '.join(argument)})")
        if token.isalpha() or token in _GREEK:
            return _atom(token + self._parse_index())
        raise NotPolynomial

    def _parse_number(self, token: str) -> Polynomial:
        is_whole = token.isdigit()
        if is_whole and int(token) <= MAX_FACTORIAL and self._take("!"):
            return _constant(math.factorial(int(token)))
        value = Fraction(token.removesuffix("."))
        return _constant(value + self._parse_mixed_part() if is_whole else value)

    def _parse_mixed_part(self) -> Fraction:
        r"""Parse the fraction of a mixed number: `\frac{1}{2}` directly behind a whole number."""
        ahead = self._tokens[self._position : self._position + _NUM_MIXED_TOKENS]
        if len(ahead) < _NUM_MIXED_TOKENS:
            return _ZERO
        numerator = ahead[2]
        denominator = ahead[5]
        if ahead != ["\\frac", "{", numerator, "}", "{", denominator, "}"]:
            return _ZERO
        if not (numerator.isdigit() and denominator.isdigit()):
            return _ZERO
        # `3\frac{4}{2}` is a product.
        if int(numerator) >= int(denominator):
            return _ZERO
        self._position += _NUM_MIXED_TOKENS
        return Fraction(int(numerator), int(denominator))

    def _parse_index(self) -> str:
        primes = ""
        while self._take("'"):
            primes += "'"
        if not self._take("_"):
            return primes
        if not self._take("{"):
            index = self._advance()
        else:
            index = ""
            while self._peek() not in ("}", ""):
                index += self._advance()
            self._expect("}")
        if not _INDEX.fullmatch(index):
            raise NotPolynomial
        return f"{primes}_{index}"

    def _parse_root(self) -> Polynomial:
        degree = 2
        if self._take("["):
            number = self._advance()
            if not number.isdigit() or not 2 <= int(number) <= 9:
                raise NotPolynomial
            degree = int(number)
            self._expect("]")
        return self._power(self._parse_argument(), Fraction(1, degree))

    def _parse_argument(self) -> Polynomial:
        # A bare number is an argument by itself, without a mixed part or a factorial behind it.
        if _is_number(self._peek()):
            return _constant(Fraction(self._advance().removesuffix(".")))
        return self._parse_base()

    def _multiply(self, left: Polynomial, right: Polynomial) -> Polynomial:
        self._num_products += len(left.terms) * len(right.terms)
        if self._num_products > MAX_PRODUCTS:
            raise NotPolynomial
        terms: dict[Monomial, Fraction] = {}
        for left_monomial, left_coefficient in left.terms.items():
            for right_monomial, right_coefficient in right.terms.items():
                monomial, factor = _multiply_monomials(left_monomial, right_monomial)
                product = left_coefficient * right_coefficient * factor
                if product.numerator.bit_length() + product.denominator.bit_length() > MAX_BITS:
                    raise NotPolynomial
                terms[monomial] = terms.get(monomial, _ZERO) + product
        if len(terms) > MAX_TERMS:
            raise NotPolynomial
        return Polynomial({monomial: value for monomial, value in terms.items() if value})

    def _power(self, base: Polynomial, exponent: Fraction) -> Polynomial:
        if abs(exponent) > MAX_EXPONENT:
            raise NotPolynomial
        if exponent.denominator != 1:
            return _fractional_power(base, exponent)
        if not base.terms:
            if exponent <= 0:
                raise NotPolynomial
            return base
        if len(base.terms) == 1:
            return _power_of_term(base, exponent)
        result = _constant(1)
        for _ in range(abs(exponent.numerator)):
            result = self._multiply(result, base)
        return _inverse(result) if exponent < 0 else result


def _power_of_term(base: Polynomial, exponent: Fraction) -> Polynomial:
    monomial, coefficient = _only_term(base)
    num_bits = max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length())
    if num_bits * abs(exponent) > MAX_BITS:
        raise NotPolynomial
    raised = tuple((atom, power * exponent) for atom, power in monomial)
    reduced, factor = _multiply_monomials((), raised)
    return Polynomial({reduced: factor * coefficient**exponent.numerator})


def _rational(polynomial: Polynomial) -> Fraction:
    if polynomial.rational is None:
        raise NotPolynomial
    return polynomial.rational


def _tokens(text: str) -> list[str]:
    stripped = text.rstrip()
    tokens = []
    end = 0
    while end < len(stripped):
        match = _TOKEN.match(stripped, end)
        if match is None:
            raise NotPolynomial
        tokens.append(match[0].strip())
        end = match.end()
    return tokens


def _is_number(token: str) -> bool:
    return token[:1].isdigit() or (token[:1] == "." and len(token) > 1)
