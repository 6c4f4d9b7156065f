// The memory that the network works in, and its two loops: WebAssembly SIMD (kernel.wat), or the same in
// plain JavaScript where a browser has none. Places in memory are counted in numbers (float32).
(function (DANP) {
  "use strict";

  class Heap {
    /** @param {WebAssembly.Memory | null} memory  Shared with the kernel; null without one. */
    constructor(memory) {
      this.memory = memory;
      this.floats = new Float32Array(memory ? memory.buffer : 1 << 16);
      this.top = 8; // place 0 means "nothing" to the kernels
    }

    /** Reserve zeros, and return their place. Everything is reserved before the first pass. */
    reserve(length) {
      const at = this.top;
      this.top += Math.ceil(length / 4) * 4;
      if (this.top > this.floats.length) {
        if (this.memory) {
          this.memory.grow(Math.ceil(((this.top - this.floats.length) * 4) / 65536));
          this.floats = new Float32Array(this.memory.buffer); // growing detaches the old view
        } else {
          const old = this.floats;
          this.floats = new Float32Array(2 * this.top);
          this.floats.set(old);
        }
      }
      return at;
    }

    store(values) {
      const at = this.reserve(values.length);
      this.floats.set(values, at);
      return at;
    }
  }

  /** erf by a rational function, to 1e-7; the same as in kernel.wat. */
  function gelu(x) {
    const z = Math.max(-4, Math.min(4, x * Math.SQRT1_2)), t = z * z;
    let p = -2.72614225801306e-10;
    p = p * t + 2.77068142495902e-8;
    p = p * t - 2.10102402082508e-6;
    p = p * t - 5.69250639462346e-5;
    p = p * t - 7.34990630326855e-4;
    p = p * t - 2.95459980854025e-3;
    p = p * t - 1.60960333262415e-2;
    let q = -1.45660718464996e-5;
    q = q * t - 2.13374055278905e-4;
    q = q * t - 1.68282697438203e-3;
    q = q * t - 7.37332916720468e-3;
    q = q * t - 1.42647390514189e-2;
    return 0.5 * x * (1 + (z * p) / q);
  }

  function plainKernels(heap) {
    const round = Math.fround; // lets the browser compute in float32 throughout
    return {
      // c[i, :] = b + a[i, :] w. Two rows by four columns at a time: eight sums in registers.
      affine(a, aStride, w, b, c, cStride, m, k, n) {
        const H = heap.floats;
        for (let j = 0; j < n; j += 4) {
          for (let i = 0; i < m; i += 2) {
            const two = i + 1 < m; // else the second row repeats the first
            let p = a + i * aStride, r = two ? p + aStride : p, q = w + j;
            let x0 = H[b + j], x1 = H[b + j + 1], x2 = H[b + j + 2], x3 = H[b + j + 3];
            let y0 = x0, y1 = x1, y2 = x2, y3 = x3;
            for (const end = p + k; p < end; p++, r++, q += n) {
              const s = H[p], t = H[r], w0 = H[q], w1 = H[q + 1], w2 = H[q + 2], w3 = H[q + 3];
              x0 = round(x0 + round(s * w0)); x1 = round(x1 + round(s * w1));
              x2 = round(x2 + round(s * w2)); x3 = round(x3 + round(s * w3));
              y0 = round(y0 + round(t * w0)); y1 = round(y1 + round(t * w1));
              y2 = round(y2 + round(t * w2)); y3 = round(y3 + round(t * w3));
            }
            let o = c + i * cStride + j;
            H[o] = x0; H[o + 1] = x1; H[o + 2] = x2; H[o + 3] = x3;
            if (!two) continue;
            o += cStride;
            H[o] = y0; H[o + 1] = y1; H[o + 2] = y2; H[o + 3] = y3;
          }
        }
      },

      // x = gelu(x + before) + after, then x / sqrt(1 + mean(x^2) / bound^2) in each row, if bound > 0.
      activate(x, before, after, rows, n, bound) {
        const H = heap.floats;
        for (let row = 0; row < rows; row++) {
          const at = row * n;
          let squares = 0;
          for (let j = at; j < at + n; j++) {
            const value = gelu(before ? H[x + j] + H[before + j] : H[x + j]) + (after ? H[after + j] : 0);
            H[x + j] = value;
            squares += value * value;
          }
          if (!(bound > 0)) continue;
          const scale = 1 / Math.sqrt(1 + squares / (n * bound * bound));
          for (let j = at; j < at + n; j++) H[x + j] *= scale;
        }
      },
    };
  }

  DANP.gelu = gelu;

  /** A heap and its kernels. DANP.wasm, if the page has it, is the assembled kernel.wat in base64. */
  DANP.makeKernels = async function ({ simd = true } = {}) {
    if (simd && DANP.wasm && typeof WebAssembly === "object") {
      try {
        const memory = new WebAssembly.Memory({ initial: 16 });
        const bytes = DANP.decodeBase64(DANP.wasm);
        const { instance } = await WebAssembly.instantiate(bytes, { page: { memory } });
        const { affine, activate } = instance.exports;
        return {
          simd: true,
          heap: new Heap(memory),
          affine: (a, aStride, w, b, c, cStride, m, k, n) =>
            affine(4 * a, 4 * aStride, 4 * w, 4 * b, 4 * c, 4 * cStride, m, k, n),
          activate: (x, before, after, rows, n, bound) =>
            activate(4 * x, 4 * before, 4 * after, rows, n, bound),
        };
      } catch {
        // No SIMD, or a policy against WebAssembly: the plain loops answer, more slowly.
      }
    }
    const heap = new Heap(null);
    return { simd: false, heap, ...plainKernels(heap) };
  };
})((globalThis.DANP = globalThis.DANP || {}));
