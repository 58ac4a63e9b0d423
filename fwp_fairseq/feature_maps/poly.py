"""All monomials up to a degree: the features of a polynomial kernel."""

import math
from itertools import combinations_with_replacement
from typing import ClassVar

import torch
from torch import Tensor

from .feature_map import FeatureMap


class Poly(FeatureMap):
    """phi(q).phi(k) = (1 + s / p)^p with s = q.k / sqrt(d_key) and an even degree p; d_dot = (d_key + p over p).

    The product tends to the exp(s) of softmax attention as p grows, is never negative, and is as sharp as its degree:
    it is learned like exp(s) as long as |s| is small beside p. Features are the monomials of degree p in the d_key + 1
    numbers u = [1, x'], x' = x d_key^-1/4 p^-1/2, with the square roots of their multinomial coefficients as factors,
    so that phi(q).phi(k) = (u_q . u_k)^p. They can be negative.

    Kacham, Mirrokni and Zhong 2024, "PolySketchFormer: Fast Transformers via Sketching Polynomial Kernels", have the
    kernel (q.k)^p, and sketch its features. Here they are exact, which takes narrow heads: 495 for d_key = 8 and
    p = 4, 153 for d_key = 16 and p = 2.

    Cost: the products of all pairs take d_key multiplications each. Only a state has d_dot features.
    """

    name = "poly"
    title = "polynomial kernel"
    widths = "(d_key + degree over degree) with an even degree, naturally 2"
    parameters_help: ClassVar = {"degree": "even degree of the polynomial"}

    def __init__(self, d_key: int, degree: int):
        super().__init__(d_key, self.width_for(d_key, degree=degree))
        self.degree = degree
        monomials = list(combinations_with_replacement(range(d_key + 1), degree))
        orders = [math.factorial(degree) // math.prod(map(math.factorial, map(m.count, set(m)))) for m in monomials]
        self.register_buffer("monomials", torch.tensor(monomials), persistent=False)
        self.register_buffer("factors", torch.tensor(orders, dtype=torch.float64).sqrt(), persistent=False)

    def features(self, x: Tensor) -> Tensor:
        u = torch.cat([torch.ones_like(x[..., :1]), x * (self.d_key**-0.25 * self.degree**-0.5)], dim=-1)
        return self.factors.to(x.dtype) * math.prod(u[..., variable] for variable in self.monomials.unbind(1))

    def products(self, x: Tensor, y: Tensor) -> Tensor:
        return (1 + (x * (self.d_key**-0.5 / self.degree)) @ y.mT) ** self.degree

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, degree={self.degree}"

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        return {"degree": 2}

    @classmethod
    def width_for(cls, d_key: int, degree: int) -> int:
        if degree < 2 or degree % 2:
            raise ValueError(f"{cls.name} feature map: degree = {degree}, expected an even number from 2 on")
        return math.comb(d_key + degree, degree)

    @classmethod
    def parameters_for(cls, d_key: int, d_dot: int) -> dict[str, int] | None:
        degree = cls._largest_degree(d_key, d_dot)
        return {"degree": degree} if degree and cls.width_for(d_key, degree) == d_dot else None

    @classmethod
    def nearest_widths(cls, d_key: int, d_dot: int) -> list[int]:
        degree = cls._largest_degree(d_key, d_dot)
        return [cls.width_for(d_key, near) for near in (degree, degree + 2) if near]

    @classmethod
    def _largest_degree(cls, d_key: int, d_dot: int) -> int:
        """The largest even degree with no more than d_dot features; 0 if there is none."""
        degree = 0
        while cls.width_for(d_key, degree + 2) <= d_dot:
            degree += 2
        return degree
