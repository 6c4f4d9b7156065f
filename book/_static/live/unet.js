// The U-Net with a path at full resolution (danp_lib/nn/unet.py, FullResolutionUNet), but for its last
// layer. Activations are stored channels last with rows of zeros at either end, so that
//  - a convolution is one matrix product, whose row i starts at input row (stride * i - padding)
//    and reads all taps at once: rows overlap in memory;
//  - a transposed one of four taps and stride 2 is two: even rows from the taps 3 and 1, odd ones from 2 and 0.
(function (DANP) {
  "use strict";

  DANP.UNet = class UNet {
    constructor(kernels, weights, { channels, numLayers, kernelSize, gridPoints, numSets, bound }) {
      Object.assign(this, { kernels, channels, numLayers, gridPoints, bound });
      this.inputChannels = 2 * numSets;
      this.padding = Math.max(1, kernelSize >> 1);
      const layers = (kind, make) =>
        Array.from({ length: numLayers }, (_, i) => make(`core.unet.${kind}.${i}`));
      const conv = (name) => this.#convolution(weights[name + ".weight"], weights[name + ".bias"]);
      const transposed = (name) => this.#transposed(weights[name + ".weight"], weights[name + ".bias"]);
      this.stem = conv("core.unet.stem");
      this.down = layers("down", conv);
      this.up = layers("up", transposed);
      this.mix = layers("mix", conv);
      this.input = this.#rows(gridPoints, this.inputChannels);
      const resolutions = Array.from({ length: numLayers + 1 }, (_, i) => gridPoints >> i);
      this.skips = resolutions.map((rows) => this.#rows(rows, channels));
      this.outputs = resolutions.map((rows) => this.#rows(rows, channels));
      this.mixed = kernels.heap.reserve(gridPoints * channels);
    }

    #rows(count, width) {
      return this.kernels.heap.reserve((count + 2 * this.padding) * width) + this.padding * width;
    }

    // [out, in, 1, taps] to rows (tap, in) of `out` numbers.
    #convolution({ shape: [out, into, , taps], values }, bias) {
      const packed = new Float32Array(values.length);
      for (let t = 0; t < taps; t++)
        for (let i = 0; i < into; i++)
          for (let o = 0; o < out; o++) packed[(t * into + i) * out + o] = values[(o * into + i) * taps + t];
      const { heap } = this.kernels;
      return { w: heap.store(packed), b: heap.store(bias.values), k: taps * into, into, padding: taps >> 1 };
    }

    // [in, out, 1, 4] to the products of even and of odd rows.
    #transposed({ shape: [into, out, , taps], values }, bias) {
      const { heap } = this.kernels;
      const pack = (pair) => {
        const packed = new Float32Array(2 * into * out);
        pair.forEach((t, row) => {
          for (let i = 0; i < into; i++)
            for (let o = 0; o < out; o++)
              packed[(row * into + i) * out + o] = values[(i * out + o) * taps + t];
        });
        return heap.store(packed);
      };
      return { even: pack([3, 1]), odd: pack([2, 0]), b: heap.store(bias.values), k: 2 * into };
    }

    #convolve(layer, from, to, rows, stride = 1) {
      const start = from - layer.padding * layer.into, n = this.channels;
      this.kernels.affine(start, stride * layer.into, layer.w, layer.b, to, n, rows, layer.k, n);
    }

    /** One pass. `encoding` is (grid, 2 * sets); returns the place of the features, (grid, channels). */
    run(encoding) {
      const { kernels, channels: C, numLayers, gridPoints, skips, bound } = this;
      const H = kernels.heap.floats;
      H.set(encoding, this.input);
      this.#convolve(this.stem, this.input, skips[0], gridPoints);
      kernels.activate(skips[0], 0, 0, gridPoints, C, bound);
      for (let i = 0; i < numLayers; i++) {
        const rows = gridPoints >> (i + 1);
        this.#convolve(this.down[i], skips[i], skips[i + 1], rows, 2);
        kernels.activate(skips[i + 1], 0, 0, rows, C, bound);
      }
      let h = skips[numLayers];
      for (let i = 0; i < numLayers; i++) {
        const resolution = numLayers - 1 - i, rows = gridPoints >> resolution;
        const up = this.up[i], out = this.outputs[resolution];
        kernels.affine(h - C, C, up.even, up.b, out, 2 * C, rows / 2, up.k, C);
        kernels.affine(h, C, up.odd, up.b, out + C, 2 * C, rows / 2, up.k, C);
        kernels.activate(out, skips[resolution], 0, rows, C, 0);
        this.#convolve(this.mix[i], out, this.mixed, rows);
        kernels.activate(this.mixed, 0, out, rows, C, bound);
        H.copyWithin(out, this.mixed, this.mixed + rows * C);
        h = out;
      }
      return h;
    }
  };
})((globalThis.DANP = globalThis.DANP || {}));
