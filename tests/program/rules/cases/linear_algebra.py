"""Linear algebra, and Fourier transforms."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tests.program.rules.cases.case import Family, f

LINEAR_ALGEBRA = Family()
case = LINEAR_ALGEBRA.case

case(
    "fft",
    "fft",
    "([i, k])->([i, j]) {i=4, j=8, k=8} need_replication={j, k}",
    lambda a: jnp.fft.fft(a),
    f(4, 8),
)
case(
    "cholesky",
    "cholesky",
    "([i, j, k])->([i, j, k]) {i=4, j=6, k=6} need_replication={j, k}",
    lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
    f(4, 6, 6),
)
case(
    "triangular_solve",
    "triangular_solve",
    "([i, l, j], [i, l, k])->([i, j, k]) {i=4, j=6, k=2, l=6} need_replication={j, k, l}",
    lambda a, c: lax.linalg.triangular_solve(a, c, left_side=True),
    f(4, 6, 6),
    f(4, 6, 2),
)
case(
    "lu",
    "lu",
    (
        "([i, n, o])->([i, j, k], [i, l], [i, m]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6} "
        "need_replication={j, k, l, m, n, o}"
    ),
    lax.linalg.lu,
    f(4, 6, 6),
)
case(
    "qr",
    "qr",
    (
        "([i, n, o])->([i, j, k], [i, l, m]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6} "
        "need_replication={j, k, l, m, n, o}"
    ),
    lax.linalg.qr,
    f(4, 6, 6),
)
case(
    "eigh",
    "eigh",
    (
        "([i, m, n])->([i, j, k], [i, l]) {i=4, j=6, k=6, l=6, m=6, n=6} need_replication={j, "
        "k, l, m, n}"
    ),
    lambda a: lax.linalg.eigh(a, symmetrize_input=False),
    f(4, 6, 6),
)
case(
    "eig",
    "eig",
    (
        "([i, o, p])->([i, j], [i, k, l], [i, m, n]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6, p=6} "
        "need_replication={j, k, l, m, n, o, p}"
    ),
    lax.linalg.eig,
    f(4, 6, 6),
)
case(
    "svd",
    "svd",
    (
        "([i, o, p])->([i, j], [i, k, l], [i, m, n]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6, p=6} "
        "need_replication={j, k, l, m, n, o, p}"
    ),
    lax.linalg.svd,
    f(4, 6, 6),
)
case(
    "schur",
    "schur",
    (
        "([i, n, o])->([i, j, k], [i, l, m]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6} "
        "need_replication={j, k, l, m, n, o}"
    ),
    lax.linalg.schur,
    f(4, 6, 6),
)
case(
    "hessenberg",
    "hessenberg",
    (
        "([i, m, n])->([i, j, k], [i, l]) {i=4, j=6, k=6, l=5, m=6, n=6} need_replication={j, "
        "k, l, m, n}"
    ),
    lax.linalg.hessenberg,
    f(4, 6, 6),
)
case(
    "tridiagonal",
    "tridiagonal",
    (
        "([i, o, p])->([i, j, k], [i, l], [i, m], [i, n]) {i=4, j=6, k=6, l=6, m=5, n=5, o=6, "
        "p=6} need_replication={j, k, l, m, n, o, p}"
    ),
    lambda a: lax.linalg.tridiagonal(a, lower=True),
    f(4, 6, 6),
)
case(
    "tridiagonal_solve",
    "tridiagonal_solve",
    (
        "([i, l], [i, m], [i, n], [i, o, p])->([i, j, k]) {i=4, j=6, k=2, l=6, m=6, n=6, o=6, "
        "p=2} need_replication={j, k, l, m, n, o, p}"
    ),
    lax.linalg.tridiagonal_solve,
    f(4, 6),
    f(4, 6),
    f(4, 6),
    f(4, 6, 2),
)
case(
    "householder_product",
    "householder_product",
    (
        "([i, l, m], [i, n])->([i, j, k]) {i=4, j=6, k=6, l=6, m=6, n=6} need_replication={j, "
        "k, l, m, n}"
    ),
    lax.linalg.householder_product,
    f(4, 6, 6),
    f(4, 6),
)
case(
    "ormqr",
    "ormqr",
    (
        "([i, l, m], [i, n], [i, o, p])->([i, j, k]) {i=4, j=6, k=2, l=6, m=6, n=6, o=6, p=2} "
        "need_replication={j, k, l, m, n, o, p}"
    ),
    lax.linalg.ormqr,
    f(4, 6, 6),
    f(4, 6),
    f(4, 6, 2),
)
case(
    "cholesky_update",
    "cholesky_update",
    "([k, l], [m])->([i, j]) {i=6, j=6, k=6, l=6, m=6} need_replication={i, j, k, l, m}",
    lax.linalg.cholesky_update,
    f(6, 6),
    f(6),
)
