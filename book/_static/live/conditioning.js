// What known outputs of a low-rank Gaussian say about the others, in float64 (danp_lib/models/conditioning.py).
(function (DANP) {
  "use strict";

  /** Inner product of `count` numbers of a from `i` on and of b from `j` on; four sums, to not wait for each. */
  function dot(a, i, b, j, count) {
    let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    const end = i + count, fours = end - 3;
    for (; i < fours; i += 4, j += 4) {
      s0 += a[i] * b[j];
      s1 += a[i + 1] * b[j + 1];
      s2 += a[i + 2] * b[j + 2];
      s3 += a[i + 3] * b[j + 3];
    }
    for (; i < end; i++, j++) s0 += a[i] * b[j];
    return s0 + s1 + s2 + s3;
  }

  /** Lower Cholesky factor of a symmetric matrix given by its lower triangle, in place; false where it has none. */
  function cholesky(A, size) {
    for (let j = 0; j < size; j++) {
      for (let i = j; i < size; i++) {
        const left = A[i * size + j] - dot(A, i * size, A, j * size, j);
        if (i > j) A[i * size + j] = left / A[j * size + j];
        else if (left > 0) A[j * size + j] = Math.sqrt(left);
        else return false;
      }
    }
    return true;
  }

  /** Solve L x = b in place, for the vector b at `at`. */
  function solveLower(L, size, b, at = 0) {
    for (let i = 0; i < size; i++) b[at + i] = (b[at + i] - dot(L, i * size, b, at, i)) / L[i * size + i];
  }

  /**
   * Condition a target, in place, on other outputs with the same shared variables.
   * `known` is a list of [Gaussian, values]; each Gaussian is {loc, diag, factor}.
   */
  function condition(target, known, rank) {
    const precision = new Float64Array(rank * rank), shift = new Float64Array(rank);
    for (let a = 0; a < rank; a++) precision[a * rank + a] = 1;
    for (const [{ loc, diag, factor }, values] of known) {
      for (let i = 0; i < values.length; i++) {
        const row = i * rank, residual = (values[i] - loc[i]) / diag[i];
        for (let a = 0; a < rank; a++) {
          const weight = factor[row + a] / diag[i];
          shift[a] += factor[row + a] * residual;
          for (let b = 0; b <= a; b++) precision[a * rank + b] += weight * factor[row + b];
        }
      }
    }
    if (!cholesky(precision, rank)) {
      target.loc.fill(NaN);
      return target;
    }
    solveLower(precision, rank, shift);
    for (let i = 0; i < target.loc.length; i++) {
      solveLower(precision, rank, target.factor, i * rank);
      target.loc[i] += dot(target.factor, i * rank, shift, 0, rank);
    }
    return target;
  }

  DANP.algebra = { dot, cholesky, solveLower, condition };
})((globalThis.DANP = globalThis.DANP || {}));
