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
      const hidden = Array.from({ length: config.headLayers }, (_, i) => `core.hidden.${i}`);
      this.out = this.#linear("core.unet.out", weights);
      this.layers = hidden.map((name) => this.#linear(name, weights));
      const doubled = (name) => Float64Array.from(weights[name].values);
      const stored = (name) => ({ w: doubled(name + ".weight"), b: doubled(name + ".bias") });
      this.exact = { out: stored("core.unet.out"), layers: hidden.map(stored), head: stored("core.head") };
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
      const totals = DANP.setconv.decode(this.grid, this.scale, kernels.heap, features, C, x, kernels.heap.floats, from);
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
      const { kernels, result } = this, layer = this.levels[level];
      this.#apply(layer, hidden.at + first * hidden.width, result, count);
      const read = kernels.heap.floats.subarray(result, result + count * layer.n);
      return this.#parts(read, layer.n, count, floor);
    }

    #parts(rows, width, count, floor) {
      const { config } = this, R = config.rank;
      const loc = new Float64Array(count), diag = new Float64Array(count), factor = new Float64Array(count * R);
      for (let i = 0; i < count; i++) {
        const row = i * width;
        loc[i] = rows[row];
        diag[i] = floor + softplus(config.varianceGain * rows[row + 1] + config.varianceOffset);
        for (let j = 0; j < R; j++) factor[i * R + j] = rows[row + 2 + j] / config.factorDivisor;
      }
      return { loc, diag, factor };
    }

    /**
     * The clean level's Gaussian at a few inputs, in float64 from the features on. Conditioning on many points
     * without noise inverts a nearly singular matrix, and would magnify float32's rounding a hundredfold.
     */
    precise(features, x, floor) {
      const { kernels, config: { channels: C, rank }, exact } = this;
      let rows = new Float64Array(x.length * C), width = C;
      const totals = DANP.setconv.decode(this.grid, this.scale, kernels.heap, features, C, x, rows, 0);
      const apply = ({ w, b }, outputs, after, bias = () => 1) => {
        const made = new Float64Array(x.length * outputs);
        for (let i = 0; i < x.length; i++)
          for (let o = 0; o < outputs; o++)
            made[i * outputs + o] = after(bias(i) * b[o] + DANP.algebra.dot(rows, i * width, w, o * width, width));
        [rows, width] = [made, outputs];
      };
      const same = (value) => value;
      apply(exact.out, C, same, (i) => totals[i]);
      for (const layer of exact.layers) apply(layer, layer.b.length, DANP.gelu);
      apply(exact.head, rank + 2, same);
      return this.#parts(rows, width, x.length, floor);
    }
  };
})((globalThis.DANP = globalThis.DANP || {}));
