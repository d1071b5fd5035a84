"""Which argument belongs to which parameter: the same answers as ``inspect.Signature.bind``."""

import inspect
import itertools

import pytest

from nobroker_django.binding import Binding

FUNCTIONS = [
    lambda: None,
    lambda a: None,
    lambda a, b=1: None,
    lambda a, /: None,
    lambda a, /, b: None,
    lambda a=1, /, b=2: None,
    lambda a, /, **others: None,
    lambda *rest: None,
    lambda **others: None,
    lambda a, *rest, b: None,
    lambda a, *, b=1, c: None,
    lambda a, b, *rest, c, **others: None,
    lambda a, /, b, *rest, c=1, **others: None,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: str(inspect.signature(function)))
def test_a_call_fits_exactly_if_python_says_so(function):
    signature = inspect.signature(function)
    binding = Binding(signature)
    names = ["a", "b", "c", "rest", "others", "", "self"]
    for count in range(5):
        for size in range(4):
            for chosen in itertools.combinations(names, size):
                args, kwargs = tuple(range(count)), dict.fromkeys(chosen, 0)
                try:
                    bound = signature.bind(*args, **kwargs)
                except TypeError as error:
                    with pytest.raises(TypeError, match=f"^{str(error).replace('*', '.')}$"):
                        binding.check(args, kwargs)
                else:
                    binding.check(args, kwargs)
                    shown = [name.split("[")[0] for name, _ in binding.by_parameter(args, {})]
                    assert set(shown) <= set(bound.arguments)


def test_the_values_of_the_rest_are_numbered():
    binding = Binding(inspect.signature(lambda a, *more, b: None))
    assert list(binding.by_parameter([1, 2, 3], {"b": 4})) == [("a", 1), ("more[0]", 2), ("more[1]", 3), ("b", 4)]
