// Set convolutions between points and the grid (danp_lib/nn/setconv.py). A Gaussian weight beyond
// 6.5 length scales is below 1e-9 and left out.
(function (DANP) {
  "use strict";
  const REACH = 6.5;
  const DENSITY_EPSILON = 1e-4;

  class Grid {
    constructor({ domain, gridPoints, pointsPerUnit }) {
      this.length = gridPoints;
      this.spacing = 1 / pointsPerUnit;
      this.start = (domain[0] + domain[1]) / 2 - ((gridPoints - 1) / 2) * this.spacing;
      this.weights = new Float64Array(gridPoints);
    }

    /** Compute `weights` of the grid points within reach of x; returns the first of these and the one after the last. */
    reach(x, scale) {
      const nearest = Math.round((x - this.start) / this.spacing);
      const steps = Math.ceil((REACH * scale) / this.spacing);
      const first = Math.max(0, nearest - steps), end = Math.min(this.length, nearest + steps + 1);
      for (let u = first; u < end; u++) {
        const d = (this.start + u * this.spacing - x) / scale;
        this.weights[u] = Math.exp(-0.5 * d * d);
      }
      return [first, end];
    }
  }

  /** Write a set's density and data channel into an encoding of `width` channels, grid points first. */
  function encodeSet(grid, scale, points, encoding, width, channel) {
    const density = new Float64Array(grid.length), data = new Float64Array(grid.length);
    for (let n = 0; n < points.x.length; n++) {
      const [first, end] = grid.reach(points.x[n], scale);
      for (let u = first; u < end; u++) {
        density[u] += grid.weights[u];
        data[u] += grid.weights[u] * points.y[n];
      }
    }
    for (let u = 0; u < grid.length; u++) {
      encoding[u * width + channel] = density[u];
      encoding[u * width + channel + 1] = data[u] / (density[u] + DENSITY_EPSILON);
    }
  }

  /** The features' weighted sums at inputs x, into `rows` from `at` on; returns each input's sum of weights. */
  function decode(grid, scale, heap, features, channels, x, rows, at) {
    const H = heap.floats, totals = new Float64Array(x.length), sum = new Float64Array(channels);
    for (let n = 0; n < x.length; n++) {
      const [first, end] = grid.reach(x[n], scale);
      sum.fill(0);
      for (let u = first; u < end; u++) {
        const weight = grid.weights[u], from = features + u * channels;
        totals[n] += weight;
        for (let c = 0; c < channels; c++) sum[c] += weight * H[from + c];
      }
      rows.set(sum, at + n * channels);
    }
    return totals;
  }

  DANP.setconv = { Grid, encodeSet, decode };
})((globalThis.DANP = globalThis.DANP || {}));
