// The exact posterior of the Gaussian-process tasks (danp_lib/exact/gp.py): mean and standard deviation.
(function (DANP) {
  "use strict";
  const JITTER = 1e-8;

  DANP.exactGP = function ({ x, y }, xt, lengthScale) {
    const n = x.length, kernel = (a, b) => Math.exp(-0.5 * ((a - b) / lengthScale) ** 2);
    const L = new Float64Array(n * n), whitened = Float64Array.from(y), cross = new Float64Array(n);
    for (let i = 0; i < n; i++)
      for (let j = 0; j <= i; j++) L[i * n + j] = kernel(x[i], x[j]) + (i === j ? JITTER : 0);
    if (!DANP.algebra.cholesky(L, n)) return null;
    DANP.algebra.solveLower(L, n, whitened);
    const mean = new Float64Array(xt.length), sd = new Float64Array(xt.length);
    for (let t = 0; t < xt.length; t++) {
      for (let i = 0; i < n; i++) cross[i] = kernel(xt[t], x[i]);
      DANP.algebra.solveLower(L, n, cross);
      let variance = 1;
      for (let i = 0; i < n; i++) {
        mean[t] += cross[i] * whitened[i];
        variance -= cross[i] * cross[i];
      }
      sd[t] = Math.sqrt(Math.max(0, variance));
    }
    return { mean, sd };
  };
})((globalThis.DANP = globalThis.DANP || {}));
