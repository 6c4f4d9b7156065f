// The exact posteriors (danp_lib/exact): of a Gaussian process the mean and the standard deviation, of waves
// those that pass through the points, with their probabilities.
(function (DANP) {
  "use strict";
  const GOLDEN = 0.5 * (Math.sqrt(5) - 1);
  const modulo = (x) => x - Math.floor(x);
  const ROUNDING = 2e-7; // how far points that lie on a wave are from it, in float32
  const NEAR = 0.02; // and points that were set by hand

  /** Mean and standard deviation at xt. */
  function exactGP({ x, y }, xt, lengthScale) {
    const n = x.length, { kernel, factor } = DANP.gp, { solveLower } = DANP.algebra;
    const L = factor(x, lengthScale), whitened = Float64Array.from(y), cross = new Float64Array(n);
    solveLower(L, n, whitened);
    const mean = new Float64Array(xt.length), sd = new Float64Array(xt.length);
    for (let t = 0; t < xt.length; t++) {
      for (let i = 0; i < n; i++) cross[i] = kernel(xt[t], x[i], lengthScale);
      solveLower(L, n, cross);
      let variance = 1;
      for (let i = 0; i < n; i++) {
        mean[t] += cross[i] * whitened[i];
        variance -= cross[i] * cross[i];
      }
      sd[t] = Math.sqrt(Math.max(0, variance));
    }
    return { mean, sd };
  }

  /** Draws of a Gaussian process given {x, y}: draws of the prior, moved by what they miss the points by. */
  function drawGP({ x, y }, prior, count, random) {
    const n = x.length, { kernel, factor } = DANP.gp, L = factor(x, prior.lengthScale);
    return Array.from({ length: count }, () => {
      const drawn = DANP.priors.gp.draw(prior, random), missed = Float64Array.from(x, (u, i) => y[i] - drawn.at(u));
      DANP.algebra.solveLower(L, n, missed);
      for (let i = n - 1; i >= 0; i--) {
        for (let j = i + 1; j < n; j++) missed[i] -= L[j * n + i] * missed[j];
        missed[i] /= L[i * n + i];
      }
      const moved = drawn.y.map((v, t) =>
        missed.reduce((sum, weight, i) => sum + weight * kernel(drawn.x[t], x[i], prior.lengthScale), v));
      return new DANP.Curve(drawn.x, moved);
    });
  }

  /** Evenly spread points of the unit square. */
  const lattice = (size) =>
    Array.from({ length: size }, (_, i) => [(i + 0.5) / size, modulo((i + 0.5) * GOLDEN)]);

  /** Two numbers, the smaller first. */
  const ordered = (a, b) => (a < b ? [a, b] : [b, a]);

  /** The frequencies at which a wave is within `tolerance` of all points, as [direction, lowest, highest]. */
  function intervals({ x, y }, [lower, upper], tolerance) {
    const near = x.indexOf(Math.min(...x)), far = x.indexOf(Math.max(...x)), found = [];
    // Where slope * omega + offset is that near to k. A slope of 0 gives all frequencies, or none.
    const solve = (slope, offset, k) => ordered((k - tolerance - offset) / slope, (k + tolerance - offset) / slope);
    for (const d of [1, -1]) {
      const slope = x.map((u) => d * (u - x[near])), offset = y.map((v) => y[near] - v);
      const [first, last] = ordered(slope[far] * lower + offset[far], slope[far] * upper + offset[far]);
      for (let k = Math.floor(first - tolerance); k <= Math.ceil(last + tolerance); k++) {
        let [low, high] = solve(slope[far], offset[far], k);
        [low, high] = [Math.max(low, lower), Math.min(high, upper)];
        const middle = 0.5 * (low + high);
        for (let i = 0; i < x.length && low < high; i++) {
          const [from, to] = solve(slope[i], offset[i], Math.round(middle * slope[i] + offset[i]));
          [low, high] = [Math.max(low, from), Math.min(high, to)];
        }
        if (low < high) found.push([d, low, high]);
      }
    }
    return found;
  }

  /** Waves and their weights; `size` of them stand for a continuum. None if no wave fits. */
  function sawtooth({ x, y }, { frequency: [lower, upper] }, { size = 4096, tolerance = ROUNDING } = {}) {
    const waves = [], weights = [];
    if (x.length === 0) {
      for (const d of [1, -1])
        for (const [first, second] of lattice(size)) {
          const omega = lower + (upper - lower) * first;
          waves.push(new DANP.Sawtooth(d * omega, 0, -(1 + (omega - 1) * second)));
          weights.push(1);
        }
      return { waves, weights };
    }
    const x0 = Math.min(...x), y0 = y[x.indexOf(x0)];
    for (const [d, low, high] of intervals({ x, y }, [lower, upper], tolerance)) {
      const share = (high - low) / (upper - lower), count = Math.ceil(size * share);
      for (let i = 0; i < count; i++) {
        const omega = low + ((high - low) * (i + 0.5)) / count, tau = modulo(d * omega * x0 - y0);
        waves.push(new DANP.Sawtooth(d * omega, x0, y0));
        // The phases that give this wave, over the length of their range.
        weights.push(((Math.ceil(omega - tau) - 1) / (omega - 1)) * (share / count));
      }
    }
    return { waves, weights };
  }

  /** The phases of square waves of a frequency that agree with all points: from low to high, if low < high. */
  function phases(omega, { x, y }) {
    let low = 1 / omega, high = 1;
    for (let i = 0; i < x.length; i++) {
      const phase = omega * x[i], threshold = modulo(phase);
      const even = modulo(Math.floor(phase) / 2) === 0, below = even === (y[i] === 1);
      const beyond = below && threshold < 0.5 / omega;
      low = Math.max(low, beyond ? 1 + threshold : below ? 0 : threshold);
      high = Math.min(high, below && !beyond ? threshold : 1);
    }
    return [low, high];
  }

  const COARSEST = 1024, SPLIT = 4, NARROWEST = 1e-13, UNDECIDED = 1 << 14;

  /** The same for square waves and outputs of 0 and 1; null where the search for waves would take too long. */
  function square(points, { frequency: [lower, upper] }, { size = 4096, cells = 1024 } = {}) {
    const steepest = Math.max(0, ...points.x) - Math.min(-1, ...points.x);
    const started = Math.max(COARSEST, Math.ceil((upper - lower) * steepest * upper));
    let width = (upper - lower) / started, all, agreeing;
    let omegas = Array.from({ length: started }, (_, i) => lower + (i + 0.5) * width);
    for (;;) {
      all = omegas.map((omega) => [omega, ...phases(omega, points)]);
      agreeing = all.filter(([, low, high]) => high > low);
      if (agreeing.length >= cells) break;
      // The bounds move by so much at the most over half a cell.
      const open = all.filter(([, low, high]) => high - low > -0.5 * steepest * width);
      if (open.length === 0 || width < NARROWEST) return { waves: [], weights: [] };
      if (open.length > cells + UNDECIDED) return null;
      omegas = open.flatMap(([omega]) =>
        Array.from({ length: SPLIT }, (_, i) => omega + width * ((i + 0.5) / SPLIT - 0.5)));
      width /= SPLIT;
    }
    const total = agreeing.map(([omega, low, high]) => (high - low) / (1 - 1 / omega));
    const sum = total.reduce((a, b) => a + b, 0), waves = [];
    let cell = 0, reached = total[0] / sum;
    for (const [first, second] of lattice(size)) {
      while (reached < first && cell < total.length - 1) reached += total[++cell] / sum;
      const [omega, low, high] = agreeing[cell];
      waves.push(new DANP.SquareWave(omega, low + (high - low) * second));
    }
    return { waves, weights: waves.map(() => 1) };
  }

  /** Draws of waves by their weights, one from each of `count` equal shares; its middle where `uniform` is left out. */
  function choose({ waves, weights }, count, uniform = () => 0.5) {
    const sum = weights.reduce((a, b) => a + b, 0), chosen = [];
    let at = 0, reached = weights[0];
    for (let i = 0; i < count; i++) {
      const wanted = (sum * (i + uniform())) / count;
      while (reached < wanted && at < waves.length - 1) reached += weights[++at];
      chosen.push(waves[at]);
    }
    return chosen;
  }

  const FEW = 32;

  /**
   * Waves to draw and how opaque: all of a few, the more probable the darker, or `count` draws from many.
   * Returns [[wave, opacity], ...].
   */
  function shown(found, count, uniform) {
    const { waves, weights } = found, most = Math.max(...weights);
    if (waves.length <= FEW) return waves.map((wave, i) => [wave, 0.1 + (0.9 * weights[i]) / most]);
    const opacity = Math.max(0.2, count ** -0.5);
    return choose(found, count, uniform).map((wave) => [wave, opacity]);
  }

  const XT = 257;

  /**
   * What a page shows of the posterior for {x, y} under a prior, {name, ...} as a model's script has it:
   * {xt, mean, sd}, or {waves, weights, within}, or {why} there is none; null for a prior of another kind.
   */
  DANP.posterior = function (points, prior) {
    const { name, noise = 0 } = prior ?? {}, domain = prior?.domain?.flat();
    if (!(name in DANP.priors) || noise !== 0) return null;
    if (name === "gp") {
      const xt = Float64Array.from({ length: XT }, (_, i) => domain[0] + ((domain[1] - domain[0]) * i) / (XT - 1));
      return { xt, ...exactGP(points, xt, prior.lengthScale) };
    }
    const none = (within) => ({ why: `No ${DANP.priors[name].title} passes within ${within} of all points.` });
    if (name === "square") {
      const y = points.y.map(Math.round);
      if (points.y.some((v, i) => Math.abs(v - y[i]) > NEAR || y[i] !== +Boolean(y[i]))) return none(NEAR);
      const found = square({ x: points.x, y }, prior);
      if (!found) return { why: "The exact posterior takes too long for these points." };
      const off = Math.max(0, ...points.y.map((v, i) => Math.abs(v - y[i])));
      return found.waves.length ? { ...found, within: off > ROUNDING ? NEAR : 0 } : none(NEAR);
    }
    for (const tolerance of [ROUNDING, NEAR]) {
      const found = sawtooth(points, prior, { tolerance });
      if (found.waves.length) return { ...found, within: tolerance === NEAR ? NEAR : 0 };
    }
    return none(NEAR);
  };

  /** How many waves are left, and how probable the first among them is, in words. */
  function describe({ waves, weights }) {
    if (waves.length > FEW) return "a continuum of waves is left";
    if (waves.length === 1) return "one wave is left";
    const most = Math.max(...weights) / weights.reduce((a, b) => a + b, 0);
    return `${waves.length} waves are left, the most probable with probability ${most.toFixed(2)}`;
  }

  DANP.exact = { gp: exactGP, drawGP, sawtooth, square, shown, describe };
})((globalThis.DANP = globalThis.DANP || {}));
