// From features on the grid to a low-rank Gaussian at any inputs (danp_lib/models/core.py).
(function (DANP) {
  "use strict";
  const softplus = (x) => (x > 20 ? x : Math.log1p(Math.exp(x)));

  DANP.Head = class Head {
    constructor(kernels, weights, config, maxPoints) {
      Object.assign(this, { kernels, config, maxPoints });
      const { heap } = kernels;
      this.grid = new DANP.setconv.Grid(config);
      this.scale = Math.exp(weights["core.decoder.log_scale"].values[0]);
      this.out = this.#linear("core.unet.out", weights);
      this.layers = Array.from({ length: config.headLayers }, (_, i) =>
        this.#linear(`core.hidden.${i}`, weights));
      // One product a level, its columns filled up to a multiple of 8.
      const outputs = config.rank + 2;
      this.levels = Array.from({ length: config.numLevels + 1 }, (_, level) =>
        this.#linear("core.head", weights, level * outputs, outputs));
      this.noBias = heap.reserve(config.channels);
      const width = Math.max(config.channels, config.headChannels);
      this.buffers = [0, 1].map(() => heap.reserve(maxPoints * width));
      this.result = heap.reserve(maxPoints * this.levels[0].n);
    }

    #linear(name, weights, first = 0, count = null) {
      const { shape, values } = weights[name + ".weight"], bias = weights[name + ".bias"].values;
      const k = shape[1], used = count ?? shape[0], n = Math.ceil(used / 8) * 8;
      const matrix = new Float32Array(k * n), offset = new Float32Array(n);
      for (let j = 0; j < used; j++) {
        offset[j] = bias[first + j];
        for (let i = 0; i < k; i++) matrix[i * n + j] = values[(first + j) * k + i];
      }
      return { w: this.kernels.heap.store(matrix), b: this.kernels.heap.store(offset), k, n };
    }

    #apply(layer, from, to, rows) {
      this.kernels.affine(from, layer.k, layer.w, layer.b, to, layer.n, rows, layer.k, layer.n);
    }

    /** The last hidden layer at inputs x: a place with one row an input. */
    hidden(features, x) {
      const { kernels, config: { channels: C }, maxPoints } = this, n = x.length;
      if (n === 0) return { at: 0, width: 0 };
      if (n > maxPoints) throw new RangeError(`at most ${maxPoints} inputs, got ${n}`);
      let [from, to] = this.buffers;
      const totals = DANP.setconv.decode(this.grid, this.scale, kernels.heap, features, C, x, from);
      this.#apply({ ...this.out, b: this.noBias }, from, to, n);
      const H = kernels.heap.floats;
      for (let i = 0; i < n; i++)
        for (let c = 0; c < C; c++) H[to + i * C + c] += totals[i] * H[this.out.b + c];
      for (const layer of this.layers) {
        [from, to] = [to, from];
        this.#apply(layer, from, to, n);
        kernels.activate(to, 0, 0, n, layer.n, 0);
      }
      return { at: to, width: this.levels[0].k };
    }

    /** The Gaussian of a level for some rows of `hidden`: loc, diag, and factor row by row. */
    gaussian(hidden, first, count, level, floor) {
      const { config, kernels, result } = this, layer = this.levels[level], R = config.rank;
      this.#apply(layer, hidden.at + first * hidden.width, result, count);
      const H = kernels.heap.floats;
      const loc = new Float64Array(count), diag = new Float64Array(count), factor = new Float64Array(count * R);
      for (let i = 0; i < count; i++) {
        const row = result + i * layer.n;
        loc[i] = H[row];
        diag[i] = floor + softplus(config.varianceGain * H[row + 1] + config.varianceOffset);
        for (let j = 0; j < R; j++) factor[i * R + j] = H[row + 2 + j] / config.factorDivisor;
      }
      return { loc, diag, factor };
    }
  };
})((globalThis.DANP = globalThis.DANP || {}));
