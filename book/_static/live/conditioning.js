// What known outputs of a low-rank Gaussian say about the others, in float64 (danp_lib/models/conditioning.py).
(function (DANP) {
  "use strict";

  /** Lower Cholesky factor of a symmetric matrix given by its lower triangle, in place; false where it has none. */
  function cholesky(A, size) {
    for (let j = 0; j < size; j++) {
      for (let i = j; i < size; i++) {
        let sum = A[i * size + j];
        for (let k = 0; k < j; k++) sum -= A[i * size + k] * A[j * size + k];
        if (i > j) A[i * size + j] = sum / A[j * size + j];
        else if (sum > 0) A[j * size + j] = Math.sqrt(sum);
        else return false;
      }
    }
    return true;
  }

  /** Solve L x = b in place, for the vector b at `at`. */
  function solveLower(L, size, b, at = 0) {
    for (let i = 0; i < size; i++) {
      let sum = b[at + i];
      for (let k = 0; k < i; k++) sum -= L[i * size + k] * b[at + k];
      b[at + i] = sum / L[i * size + i];
    }
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
      for (let a = 0; a < rank; a++) target.loc[i] += target.factor[i * rank + a] * shift[a];
    }
    return target;
  }

  DANP.algebra = { cholesky, solveLower, condition };
})((globalThis.DANP = globalThis.DANP || {}));
