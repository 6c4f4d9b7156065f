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

  // Rounds of widening the variances of known outputs that disagree with their own Gaussian.
  const INFLATIONS = 3;

  /**
   * Condition a target, in place, on other outputs with the same shared variables.
   * `known` is a list of [Gaussian, values]; each Gaussian is {loc, diag, factor}. Where the values' mean squared
   * distance from their Gaussian exceeds `maxChiSquare`, its diagonal variances are multiplied by the excess.
   */
  function condition(target, known, rank, maxChiSquare = Infinity) {
    const precision = new Float64Array(rank * rank), weighted = new Float64Array(rank);
    let squared = 0, count = 0;
    for (const [{ loc, diag, factor }, values] of known) {
      count += values.length;
      for (let i = 0; i < values.length; i++) {
        const row = i * rank, residual = values[i] - loc[i];
        squared += (residual * residual) / diag[i];
        for (let a = 0; a < rank; a++) {
          const weight = factor[row + a] / diag[i];
          weighted[a] += weight * residual;
          for (let b = 0; b <= a; b++) precision[a * rank + b] += weight * factor[row + b];
        }
      }
    }
    // L and g of the posterior of the shared variables, with all known variances times `scale`.
    const posterior = (scale) => {
      const lower = precision.map((value) => value / scale), whitened = weighted.map((value) => value / scale);
      for (let a = 0; a < rank; a++) lower[a * rank + a] += 1;
      if (!cholesky(lower, rank)) return null;
      solveLower(lower, rank, whitened);
      return { lower, whitened };
    };
    let scale = 1, found = posterior(scale);
    for (let i = 0; i < INFLATIONS && found; i++) {
      const chiSquare = squared / scale - dot(found.whitened, 0, found.whitened, 0, rank);
      const excess = chiSquare / (maxChiSquare * Math.max(1, count));
      if (!(excess > 1)) break;
      scale *= excess;
      found = posterior(scale);
    }
    if (!found) {
      target.loc.fill(NaN);
      return target;
    }
    for (let i = 0; i < target.loc.length; i++) {
      solveLower(found.lower, rank, target.factor, i * rank);
      target.loc[i] += dot(target.factor, i * rank, found.whitened, 0, rank);
    }
    return target;
  }

  DANP.algebra = { dot, cholesky, solveLower, condition };
})((globalThis.DANP = globalThis.DANP || {}));
