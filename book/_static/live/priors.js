// The three priors (danp_lib/data/generators.py): functions drawn from them, and how they are shown.
(function (DANP) {
  "use strict";
  const JITTER = 1e-8;
  const modulo = (x) => x - Math.floor(x);

  /** y0 at x0, rising at `slope`, from 1 back to 0. */
  class Sawtooth {
    constructor(slope, x0, y0) {
      Object.assign(this, { slope, x0, y0 });
    }

    at(x) {
      return modulo(this.slope * (x - this.x0) + this.y0);
    }

    /** Its straight pieces on [low, high], each a list of points. */
    lines([low, high]) {
      const { slope, x0, y0 } = this, pieces = [];
      const first = slope * (low - x0) + y0, last = slope * (high - x0) + y0;
      const cross = (k) => x0 + (k - y0) / slope, up = slope > 0;
      for (let k = Math.floor(Math.min(first, last)); k < Math.max(first, last); k++) {
        // The piece on which the phase lies between k and k + 1.
        const [from, to] = up ? [cross(k), cross(k + 1)] : [cross(k + 1), cross(k)];
        const ends = [Math.max(low, from), Math.min(high, to)];
        pieces.push(ends.map((x) => [x, slope * (x - x0) + y0 - k]));
      }
      return pieces;
    }
  }

  class SquareWave {
    constructor(omega, phi) {
      Object.assign(this, { omega, phi });
    }

    at(x) {
      return Math.floor(this.omega * x - this.phi) % 2 === 0 ? 1 : 0;
    }

    lines([low, high]) {
      const { omega, phi } = this, points = [[low, this.at(low)]];
      for (let k = Math.floor(omega * low - phi) + 1; (k + phi) / omega < high; k++) {
        const x = (k + phi) / omega, after = Math.abs(k) % 2 === 0 ? 1 : 0;
        points.push([x, 1 - after], [x, after]);
      }
      points.push([high, points.at(-1)[1]]);
      return [points];
    }
  }

  /** Values at inputs, joined by straight lines. */
  class Curve {
    constructor(x, y) {
      Object.assign(this, { x, y });
    }

    at(x) {
      const last = this.x.length - 1, step = (this.x[last] - this.x[0]) / last;
      const place = DANP.parts.clamp((x - this.x[0]) / step, [0, last]), i = Math.min(last - 1, Math.floor(place));
      return this.y[i] + (place - i) * (this.y[i + 1] - this.y[i]);
    }

    /** The nearest of its inputs: between them it is a straight line, which no such process draws. */
    snap(x) {
      return this.x.reduce((best, u) => (Math.abs(u - x) < Math.abs(best - x) ? u : best));
    }

    lines() {
      return [Array.from(this.x, (x, i) => [x, this.y[i]])];
    }
  }

  const kernel = (a, b, lengthScale) => Math.exp(-0.5 * ((a - b) / lengthScale) ** 2);

  /** Cholesky factor of a Gaussian process's covariance at some inputs; null if it has none. */
  function gpFactor(x, lengthScale) {
    const n = x.length, L = new Float64Array(n * n);
    for (let i = 0; i < n; i++)
      for (let j = 0; j <= i; j++) L[i * n + j] = kernel(x[i], x[j], lengthScale) + (i === j ? JITTER : 0);
    return DANP.algebra.cholesky(L, n) ? L : null;
  }

  const between = ([low, high], unit) => low + (high - low) * unit;
  const GP_INPUTS = 129;
  const factors = new Map();

  function drawGP({ lengthScale, domain }, { normal }) {
    const x = Float64Array.from({ length: GP_INPUTS }, (_, i) => between(domain, i / (GP_INPUTS - 1)));
    const key = `${lengthScale} ${domain}`;
    if (!factors.has(key)) factors.set(key, gpFactor(x, lengthScale));
    const L = factors.get(key), noise = Float64Array.from(x, normal);
    return new Curve(x, x.map((_, i) => DANP.algebra.dot(L, i * GP_INPUTS, noise, 0, i + 1)));
  }

  DANP.priors = {
    sawtooth: {
      title: "sawtooth wave", yRange: [-0.25, 1.25], jump: 0.35,
      defaults: { name: "sawtooth", domain: [-2, 2], frequency: [2, 4] },
      draw({ frequency }, { uniform }) {
        const omega = between(frequency, uniform()), phase = between([1, omega], uniform());
        return new Sawtooth(uniform() < 0.5 ? omega : -omega, 0, -phase);
      },
    },
    square: {
      title: "square wave", yRange: [-0.25, 1.25], jump: Infinity,
      defaults: { name: "square", domain: [-2, 2], frequency: [1, 3] },
      draw({ frequency }, { uniform }) {
        const omega = between(frequency, uniform());
        return new SquareWave(omega, between([1 / omega, 1], uniform()));
      },
    },
    gp: {
      title: "Gaussian process", yRange: [-3, 3], jump: Infinity,
      defaults: { name: "gp", domain: [-2, 2], lengthScale: 0.25 },
      draw: drawGP,
    },
  };
  Object.assign(DANP, { Sawtooth, SquareWave, Curve, gp: { kernel, factor: gpFactor } });
})((globalThis.DANP = globalThis.DANP || {}));
